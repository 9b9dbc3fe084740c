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
        dims { D = head_dim, E = hiden_size }
        //         ^^^^^^^^ mismatched types
        //                       ^^^^^^^^^^ no field `hiden_size` on type `&Config`
        up: Linear[D -> E](bias if eps),
        //                         ^^^ mismatched types
        fn forward(x: T[B, D]) -> T[B, E] { self.up(x) }
    }
}

fn main() {}
