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
    Net(Config) {
//  ^^^ the root block needs a type parameter, its element type: `Net<T: Float>`
        dims { D = 4 }
        norm: RmsNorm[D],
        fn forward(x: f32[B, D]) -> f32[B, D] { self.norm(x) }
    }
}

fn main() {}
