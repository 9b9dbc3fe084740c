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
        scope: RmsNorm[D],
//      ^^^^^ every block has a `scope` of its own; choose another name
        forward: RmsNorm[D],
//      ^^^^^^^ `forward` is the name of the block's own function
        fn forward(x: T[B, D]) -> T[B, D] { self.scope(self.forward(x)) }
        // ^^^^^^^ the field or function `forward` is declared twice
        fn build(x: T[B, D]) -> T[B, D] { x }
        // ^^^^^ every block has a `build` of its own; choose another name
    }
}

fn main() {}
