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
        dims { d = hidden_size }
        //     ^ the axis `d` must begin with an upper-case letter, to differ from configuration keys
        norm: RmsNorm[D],
        fn forward(x: T[B, D]) -> T[B, D] { self.norm(x) }
    }
}

fn main() {}
