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
        fn forward(x: f32[B, D]) -> T[B, D] {
            std::thread::scope(|scope| { scope.spawn(move || x); });
            //                                 ^^^^^ `*const ()` cannot be sent between threads safely
            self.norm(x.to())
        }
    }
}

fn main() {}
