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
        norm: RmsNorm[D],
        norm: RmsNorm[D],
//      ^^^^ the field or function `norm` is declared twice
        fn forward(x: T[B, D]) -> T[B, D] { self.norm(x) }
        fn norm(x: T[B, D]) -> T[B, D] { x }
        // ^^^^ the field or function `norm` is declared twice
    }
}

fn main() {}
