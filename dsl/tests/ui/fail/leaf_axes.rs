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
        dims { D = hidden_size, E = 4 }
        a: RmsNorm,
        // ^^^^^^^ `RmsNorm` needs its axes: `RmsNorm[D]`
        b: Linear[D, E],
        // ^^^^^^ the axes of `Linear` are written `Linear[D -> V]`
        c: Embedding[D],
        // ^^^^^^^^^ the axes of `Embedding` are written `Embedding[V, D]`
        d: RmsNorm[D -> E],
        // ^^^^^^^ the axes of `RmsNorm` are written `RmsNorm[D]`
        fn forward(x: T[B, D]) -> T[B, D] { self.a(self.b(self.c(self.d(x)))) }
    }
}

fn main() {}
