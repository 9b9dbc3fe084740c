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
        fn forward(x: T[B, D]) -> T[B, D] { self.norm(x) }
    }
    Mlp {
//  ^^^ the block `Mlp` is declared and no field is a `Mlp`
        fn forward(x: T[B, D]) -> T[B, D] { x }
    }
}

fn main() {}
