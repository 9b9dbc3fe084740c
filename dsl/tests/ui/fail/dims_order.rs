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
        dims {
            E = D / 2,
            //  ^ the dim `D` is used before its definition
            D = hidden_size,
            G = G / 2,
            //  ^ the dim `G` is used before its definition
            H = H,
            //  ^ the dim `H` is used before its definition
            K = Dd * E,
            //  ^^ unknown dim `Dd`; did you mean `D`?
            N = 0,
            //  ^ expected an extent of at least 1
        }
        norm: RmsNorm[D],
        fn forward(x: T[B, D]) -> T[B, D] { self.norm(x) }
    }
}

fn main() {}
