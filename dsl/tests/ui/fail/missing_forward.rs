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
        dims { D = hidden_size }
        mlp: Mlp,
        fn forward(x: T[B, D]) -> T[B, D] { self.mlp(x) }
    }
    Mlp {
//  ^^^ the block `Mlp` has no function, such as `fn forward`
        up: RmsNorm[D],
    }
}

fn main() {}
