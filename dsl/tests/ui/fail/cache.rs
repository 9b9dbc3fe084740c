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
        dims { D = hidden_size, L = num_layers, K = 2 }
        cache { L of [K, E], L of other: Slots[K = W] }
//      ^^^^^ a model with a `cache` also needs `fn logits(x: T[.., D]) -> f32[.., V]`
        //               ^ unknown axis `E`
        //                                         ^ unknown axis `W`
        cache { L of [K, D] }
//      ^^^^^ `cache` is written twice
        norm: RmsNorm[D],
        fn forward(x: T[B, D]) -> T[B, D] { self.norm(x) }
    }
}

fn main() {}
