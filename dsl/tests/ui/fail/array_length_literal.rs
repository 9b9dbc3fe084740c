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
        layers: [Layer; 3],
        //              ^ the length of an array is a dim; declare it in `dims`
        fn forward(x: T[B, D]) -> T[B, D] { self.layers[0].forward(x) }
    }
    Layer {
        fn forward(x: T[B, D]) -> T[B, D] { x }
    }
}

fn main() {}
