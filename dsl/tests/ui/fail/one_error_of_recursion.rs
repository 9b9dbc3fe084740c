//! A block that contains itself is one error, without a further error of rustc about its size.

use tracewright_dsl::*;

#[derive(Clone)]
struct Config {
    hidden_size: usize,
}

model! {
    Net<T: Float>(Config) {
        dims { D = hidden_size }
        tree: Tree,
        norm: RmsNorm[D],
        norm: RmsNorm[D],
//      ^^^^ the field or function `norm` is declared twice
        scope: RmsNorm[D],
//      ^^^^^ every block has a `scope` of its own; choose another name
        other: Othr,
        //     ^^^^ no block `Othr` in this `model!`; known are `Tree`
        fn forward(x: half[B, D], x: T[B, D]) -> T[B, D] { self.norm(self.tree(x)) + self.scope(self.other(x)) }
        //            ^^^^ unknown element type `half`
        //                        ^ the argument `x` is declared twice
    }
    Tree {
        left: Tree,
        //    ^^^^ a block cannot contain itself: `Tree` → `Tree`
        norm: RmsNorm[D],
        fn forward(x: T[B, D]) -> T[B, D] { self.left(self.norm(x)) }
    }
}

fn main() {
    let net = Net::<F32>::new(&Config { hidden_size: 4 }).unwrap_or_else(|error| panic!("{error}"));
    let _ = |x: Tensor<F32>| net.forward(x, net.tree(net.norm(x)));
}
