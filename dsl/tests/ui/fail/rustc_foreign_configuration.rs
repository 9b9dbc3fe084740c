use tracewright_dsl::*;

#[derive(Clone)]
struct Config {
    hidden_size: usize,
    num_layers: usize,
    head_dim: Option<usize>,
    tied: bool,
    eps: f64,
}

mod other {
    use tracewright_dsl::*;

    #[derive(Clone)]
    pub struct Config {
        pub size: usize,
    }

    model! {
        pub Other<T: Float>(Config) {
            dims { D = size }
            norm: RmsNorm[D],
            fn forward(x: T[B, D]) -> T[B, D] { self.norm(x) }
        }
    }
}

model! {
    Net<T: Float>(Config) {
        dims { D = hidden_size }
        other: other::Other<T>,
        //            ^^^^^ Project<other::Config>` is not satisfied
        fn forward(x: T[B, D]) -> T[B, D] { self.other.forward(x) }
    }
}

fn main() {}
