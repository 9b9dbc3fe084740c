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
        fn forward(x: bf16[B, D], y: f32[B, D]) -> f32[B, D] {
            self.norm(y.to()).to::<F32>() + x
            //                            ^ cannot add `Tensor<Bf16>` to `Tensor<tracewright_dsl::F32>`
        }
    }
}

fn main() {}
