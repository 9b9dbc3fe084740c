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
        fn forward(x: T[B, D], a: bool, b: bool, c: bool, d: bool, e: bool, f: bool, g: bool, h: bool) -> T[b, D] {
            //                                                                                ^ a function takes at most 8 arguments; put some in a struct
            //                                                                                              ^ the axis `b` must begin with an upper-case letter
            //                          ^ the argument `b` has the name of an axis
            self.norm(x)
        }
    }
}

fn main() {}
