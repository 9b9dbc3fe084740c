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
        used: RmsNorm[D],
        unused: RmsNorm[D],
//      ^^^^^^ `unused` is declared and never used; use `self.unused` in a function of `Net` or remove it
        inner: Inner,
        fn forward(x: T[B, D]) -> T[B, D] { self.inner(self.used(x)) }
    }
    Inner {
        used: RmsNorm[D],
//      ^^^^ `used` is declared and never used; use `self.used` in a function of `Inner` or remove it
        fn forward(x: T[B, D]) -> T[B, D] { x }
    }
}

fn main() {}
