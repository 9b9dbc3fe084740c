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
        dims { D = hidden_size }
        mlp: Mpl,
        //   ^^^ no block `Mpl` in this `model!`; did you mean `Mlp`?
        fn forward(x: T[B, D]) -> T[B, D] { self.mlp(x) }
    }
    Mlp {
        up: Linear[D -> D2],
        //              ^^ unknown axis `D2`
        fn forward(x: T[B, D]) -> T[B, D] { self.up(x) }
    }
}

fn main() {}
