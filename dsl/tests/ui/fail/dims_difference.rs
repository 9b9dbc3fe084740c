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
        dims { D = hidden_size - 1 }
        //                     ^ a dim is a sum, a product or an exact quotient; compute differences in the configuration
        norm: RmsNorm[D],
        fn forward(x: T[B, D]) -> T[B, D] { self.norm(x) }
    }
}

fn main() {}
