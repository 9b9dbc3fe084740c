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
        square: Linear[D -> D],
        //             ^ axis `D` occurs twice in one tensor; give it a second name in `dims`
        fn forward(x: T[B, D]) -> T[B, D] { self.square(x) }
    }
}

fn main() {}
