use tracewright_dsl::*;

#[derive(Clone)]
struct Config {
    hidden_size: usize,
    num_layers: usize,
    head_dim: Option<usize>,
    tied: bool,
    eps: f64,
}

model! {
    Net<T: Float>(Config) {
        dims { D = hidden_size, L = num_layers }
        norms: [RmsNorm[D]; L],
        //      ^^^^^^^ an array of leaves; wrap `RmsNorm` in a block: `[Block; L]`
        fn forward(x: T[B, D]) -> T[B, D] { self.norms[0](x) }
    }
}

fn main() {}
