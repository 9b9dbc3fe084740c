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
        cache { L of [K, E] }
        embed: Embedding[D, E],
        fn forward(tokens: i32[B, S], _at: Position, _cache: &mut Cache<T>) -> f32[B, S, E] {
        // ^^^^^^^ mismatched types
            self.embed(tokens).to()
        }
        fn logits(x: T[.., E]) -> f32[.., E] {
            x.to()
        }
    }
}

fn main() {}
