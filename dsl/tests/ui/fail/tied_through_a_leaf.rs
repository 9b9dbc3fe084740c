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
        dims { V = 11, D = hidden_size, E = 4, L = num_layers }
        model: Model,
        layers: [Model; L],
        norm: RmsNorm[D],
        head: Linear[D -> V] = tied(norm.weight) if tied,
        //                          ^^^^ `norm` is a `RmsNorm`, which has no fields
        fn forward(x: i32[B]) -> T[B, V] { self.head(self.norm(self.model(x) + self.layers[0].forward(x))) }
    }
    Model {
        embed: Embedding[V, D],
        narrow: Embedding[V, E],
        fn forward(x: i32[B]) -> T[B, D] { self.embed(x) + self.narrow(x).rename(E, D) }
    }
}

fn main() {}
