use tracewright_dsl::*;

#[derive(Clone)]
struct Config {
    layers: usize,
}

impl Config {
    fn window(&self, _: usize) -> Option<usize> {
        None
    }
}

model! {
    Net<T: Float>(Config) {
        dims { V = 5, D = 4, L = layers, K = 2 }
        cache {
            L of kv [K],
//               ^^ `Kv<T>` is no state with 1 axes
            L of recurrent [K, D] within window,
//               ^^^^^^^^^ `Recurrent<T>` has no window
            L of latent: Latent[D],
//                       ^^^^^^ cannot find type `Latent`
        }
        embed: Embedding[V, D],
        fn forward(tokens: i32[B, S], _at: Position, _cache: &mut Cache<T>) -> T[B, S, D] { self.embed(tokens) }
        fn logits(x: T[.., D]) -> f32[.., D] { x.to() }
    }
}

fn main() {}
