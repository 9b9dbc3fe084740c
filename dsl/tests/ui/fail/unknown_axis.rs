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
        up: Linear[D -> DD],
        //              ^^ unknown axis `DD`: a weight's axes are declared in `dims`; did you mean `D`?
        fn forward(x: T[B, D]) -> T[B, D] { self.up(x) }
    }
}

fn main() {}
