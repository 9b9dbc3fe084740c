//! A syntax error removes only the item that contains it.

use tracewright_dsl::*;

#[derive(Clone)]
struct Config {
    hidden_size: usize,
}

model! {
    Net<T: Float>(Config) {
        dims { D = hidden_size, E = hidden_size }
        up: Linear[D => D],
        //           ^ expected `,`
        down: Linear[D -> E],
        inner: Inner,
        fn forward(x: T[B, D]) -> T[B, D] { self.down(self.up(self.inner(x))) }
    }
    Inner {
        norm: RmsNorm[D],
        fn forward(x: T[B, D]) -> T[B, D] { self.norm(x) }
    }
}

fn apply<T: Float>(net: &Net<T>, x: Tensor<T>) -> Tensor<T> {
    net.forward(net.down(net.inner.forward(net.inner(x))))
}

fn main() {
    let net = Net::<F32>::new(&Config { hidden_size: 4 }).unwrap_or_else(|error| panic!("{error}"));
    let _ = |x| apply(&net, x);
}
