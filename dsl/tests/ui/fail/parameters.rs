use tracewright_dsl::*;

#[derive(Clone)]
struct Config {
    hidden_size: usize,
}

trait Maps<T: Float>: Block<Config = Config> {
    fn forward(&self, x: Tensor<T>) -> Tensor<T>;
}

model! {
    Net<T: Float>(Config): Maps<T> {
    //                     ^^^^^^^ `Net` has no `fn forward`, which is what a trait here asks for
        dims { D = hidden_size }
        mlp: Mlp,
        fn twice(x: T[B, D]) -> T[B, D] { self.mlp(self.mlp(x)) }
    }
    Mlp<U: Float>: Maps<U> {
    // ^^^^^^^^^^ the first parameter is the element type of the root block, `T`
        norm: RmsNorm[D],
        fn forward(x: T[B, D]) -> T[B, D] { self.norm(x) }
    }
}

fn main() {}
