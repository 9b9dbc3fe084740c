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
        dims { V = 11, D = hidden_size, E = hidden_size, L = num_layers }
        embed: Embedding[V, D](transposed),
        //                     ^^^^^^^^^^ `Embedding` has no settings
        up: Linear[D -> E](transposed = 1),
        //                 ^^^^^^^^^^ `transposed` is on or off: `transposed`, `transposed = false` or `transposed if key`
        down: Linear[D -> E](transposed) = tied(middle),
        //                   ^^^^^^^^^^ a tied weight is stored as the leaf that it belongs to says; remove `transposed`
        middle: Linear[D -> E],
        head: Linear[D -> E] = tied(up) if tied,
        //                          ^^ `up` is stored transposed, and nothing can be tied to it
        layers: [Layer; L] = tied(middle),
//      ^^^^^^ `layers` is no leaf, and only a leaf can be tied
        fn forward(x: i32[B]) -> T[B, D] {
            self.head(self.layers[0].forward(self.down(self.up(self.middle(self.embed(x))))))
        }
    }
    Layer {
        norm: RmsNorm[D],
        fn forward(x: T[B, D]) -> T[B, D] { self.norm(x) }
    }
}

fn main() {}
