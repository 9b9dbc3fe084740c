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
        fn forward(x: T[B, D]) -> T[B, D] { x }
    }
    Mlp {
//  ^^^ the block `Mlp` is declared twice
        fn forward(x: T[B, D]) -> T[B, D] { x }
    }
    Linear {
//  ^^^^^^ `Linear` is a built-in leaf; give the block another name
        fn forward(x: T[B, D]) -> T[B, D] { x }
    }
}

fn main() {}
