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
        norm: RmsNorm[D],
        fn forward(x: T[B, S, D]) -> T[B, S, S] { dot(x, self.norm(x).rename(S, S), D) }
        //                                   ^ axis `S` occurs twice in one tensor; give the second one a name of its own; `.rename(S, C)` makes one
    }
}

fn main() {}
