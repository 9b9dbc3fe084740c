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
        fn forward(&self, x: T[B, D]) -> T[B, D] { self.norm(x) }
        //          ^^^^ `self` is always there; write `fn forward(x: …)`
    }
}

fn main() {}
