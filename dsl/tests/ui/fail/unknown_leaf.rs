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
        norm: RMSNorm[D],
        //    ^^^^^^^ no leaf `RMSNorm`; did you mean `RmsNorm`?
        mlp: Mlp[D],
        //   ^^^ `Mlp` is a block and has no axes; write `Mlp`
        fn forward(x: T[B, D]) -> T[B, D] { self.mlp(self.norm(x)) }
    }
    Mlp {
        fn forward(x: T[B, D]) -> T[B, D] { x }
    }
}

fn main() {}
