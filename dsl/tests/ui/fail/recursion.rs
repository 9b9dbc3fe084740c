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
        dims { D = hidden_size, L = num_layers }
        a: A,
        fn forward(x: T[B, D]) -> T[B, D] { self.a(x) }
    }
    A {
        b: [B; L],
        fn forward(x: T[N, D]) -> T[N, D] { self.b[0].forward(x) }
    }
    B {
        a: A,
        // ^ a block cannot contain itself: `A` → `B` → `A`
        fn forward(x: T[N, D]) -> T[N, D] { self.a(x) }
    }
}

fn main() {}
