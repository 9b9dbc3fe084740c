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
    #[derive(Debug)]
    //^^^^^^ only doc comments, `allow` and `expect` can stand here
    Net<T: Float>(Config) {
        dims { D = hidden_size }
        #[cfg(test)]
        //^^^ only doc comments, `allow` and `expect` can stand here
        norm: RmsNorm[D],
        #[allow(unused)]
        fn forward(x: T[B, D]) -> T[B, D] { self.norm(x) }
    }
}

fn main() {}
