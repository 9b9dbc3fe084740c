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
        fn forward(x: &mut T[B, D]) -> T[B, D] { self.norm(*x) }
        //            ^ tensors are small and free to copy; write `T[…]` without `&`
    }
}

fn main() {}
