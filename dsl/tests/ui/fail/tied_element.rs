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
        dims { V = 11, D = hidden_size }
        embed: Embedding<F32>[V, D],
        head: Linear[D -> V] = tied(embed),
        //                          ^^^^^ `embed` has another element type than `head`
        norm: RmsNorm[D] = tied(norm),
        //    ^^^^^^^ a `RmsNorm` cannot be tied
        fn forward(x: i32[B]) -> T[B, V] { self.head(self.norm(self.embed(x).to::<T>())) }
    }
}

fn main() {}
