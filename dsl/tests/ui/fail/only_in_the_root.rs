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
        dims { D = hidden_size, L = num_layers, K = 2, E = 4 }
        mlp: Mlp,
        fn forward(x: T[B, D]) -> T[B, D] { self.mlp(x) }
    }
    Mlp<T: Float>(Config) {
    //            ^^^^^^ the configuration is of the root block `Net`; inner blocks share it
        dims { F = 4 }
//      ^^^^ `dims` is a section of the root block `Net`; inner blocks share it
        cache { L of [K, E] }
//      ^^^^^ `cache` is a section of the root block `Net`; inner blocks share it
        fn forward(x: T[B, D]) -> T[B, D] { x }
    }
}

fn main() {}
