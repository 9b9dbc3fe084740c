use tracewright_dsl::*;

#[derive(Clone)]
struct Config {
    hidden_size: usize,
    num_layers: usize,
    head_dim: Option<usize>,
    tied: bool,
    eps: f64,
}

#[derive(Clone)]
struct Plain;

model! {
    Net<T: Float>(Config) {
        dims { D = hidden_size }
        norm: RmsNorm[D],
        fn forward(x: T[B, D], plain: &Plain) -> T[B, D] { match plain { Plain => self.norm(x) } }
        //                             ^^^^^ the trait bound `Plain: TraceArg` is not satisfied
    }
}

fn main() {}
