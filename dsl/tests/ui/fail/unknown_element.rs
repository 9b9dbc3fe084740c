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
        fn forward(x: T[B, D]) -> float32[B, D] { self.norm(x).to() }
        //                        ^^^^^^^ unknown element type `float32`; did you mean `f32`?
        fn other(x: U[B, D]) -> i64[B, D] { x }
        //          ^ unknown element type `U`
        //                      ^^^ unknown element type `i64`
    }
}

fn main() {}
