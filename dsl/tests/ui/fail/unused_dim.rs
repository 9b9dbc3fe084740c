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
        dims { D = hidden_size, L = num_layers, E = 4 }
        //                      ^ the dim `L` is declared and never used
        norm: RmsNorm[D],
        fn forward(x: T[B, D]) -> T[B, D] {
            assert_eq!(self.dim(E), 4);
            self.norm(x)
        }
    }
}

fn main() {}
