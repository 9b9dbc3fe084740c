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
        layers: [Layer; L],
        fn forward(x: T[B, D]) -> T[B, D] { self.layers(x) }
        //                                       ^^^^^^ field, not a method
    }
    Layer {
        fn forward(x: T[B, D]) -> T[B, D] { x }
    }
}

fn main() {}
