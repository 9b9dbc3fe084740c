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
//  ^^^ `Net` has no `dims { … }`, which names its axes
        fn forward(x: T[B, D]) -> T[B, D] { x }
    }
}

fn main() {}
