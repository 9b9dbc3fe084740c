use tracewright_dsl::*;

#[derive(Clone)]
struct Config {
    hidden_size: usize,
}

model! {
    Net<T: Float>(Config) {
        dims {
            D = hidden_size,
            E = D
            + D + D + D + D + D + D + D + D + D + D
            + D + D + D + D + D + D + D + D + D + D
            + D + D + D + D + D + D + D + D + D + D
            + D + D + D + D + D + D + D + D + D + D
            + D + D + D + D + D + D + D + D + D + D
            + D + D + D + D + D + D + D + D + D + D
            + D + D + D + D + D + D + D + D + D + D
            + D + D + D + D + D + D + D + D + D + D
            + D + D + D + D + D + D + D + D + D + D
            + D + D + D + D + D + D + D + D + D + D
            + D + D + D + D + D + D + D + D + D + D
            + D + D + D + D + D + D + D + D + D + D
            + D + D + D + D + D + D + D + D + D + D
            //    ^ expected at most 256 tokens between two commas
        }
        norm: RmsNorm[D],
        fn forward(x: T[B, D]) -> T[B, D] { self.norm(x) }
    }
}

fn main() {}
