use tracewright_dsl::*;

#[derive(Clone)]
struct Config {
    hidden_size: usize,
}

trait Maps<T: Float>: Block<Config = Config> {
    fn forward(&self, x: Tensor<T>) -> Tensor<T>;
}

model! {
    Net<T: Float, M: Maps<T>>(Config) {
        dims { D = hidden_size }
        part: M,
        fn forward(x: T[B, D]) -> T[B, D] { self.part.forward(x) }
    }
    Mlp<T: Float>: Maps<T> {
        norm: RmsNorm[D],
        fn forward(x: T[B, D]) -> T[B, D] { self.norm(x) }
    }
}

model! {
    Silent<T: Float>(Config) {
        dims { D = hidden_size }
        norm: RmsNorm[D],
        fn forward(x: T[B, D]) -> T[B, D] { self.norm(x) }
    }
}

fn fits(_: Net<F32, Mlp<F32>>) {}

fn does_not(_: Net<F32, Silent<F32>>) {}
//             ^^^^^^^^^^^^^^^^^^^^^ the trait bound `Silent<tracewright_dsl::F32>: Maps<tracewright_dsl::F32>` is not

fn main() {}
