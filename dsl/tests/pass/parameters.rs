//! Tests of blocks with other blocks as type parameters.

use tracewright_dsl::{Block, F32, Float, Tensor, model};

#[derive(Clone)]
pub struct Config {
    features: usize,
    layers: usize,
}

pub trait Maps<T: Float>: Block<Config = Config> {
    fn forward(&self, x: Tensor<T>) -> Tensor<T>;
}

model! {
    pub Stack<T: Float, Y: Maps<T>>(Config) {
        dims { D = features, L = layers, F = 3 }
        first: Around,
        layers: [Y; L],
        fn forward(x: T[B, D]) -> T[B, D] {
            let mut x = self.first(x);
            for layer in &self.layers {
                x = layer.forward(x);
            }
            x
        }
    }

    /// This block has the type parameters of the root block.
    Around {
        inner: Y,
        norm: RmsNorm[D],
        fn forward(x: T[B, D]) -> T[B, D] { self.inner.forward(self.norm(x)) }
    }

    /// This block declares its own type parameters. The default of a parameter is a block of this
    /// declaration.
    pub Residual<T: Float, M: Maps<T> = Narrow<T>>: Maps<T> {
        half: M,
        plain: Narrow,
        fn forward(x: T[B, D]) -> T[B, D] { x + self.plain(self.half.forward(x)) }
    }

    pub Narrow<T: Float>: Maps<T> {
        down: Linear[D -> F],
        up: Linear[F -> D],
        fn forward(x: T[B, D]) -> T[B, D] { self.up(self.down(x)) }
    }
}

model! {
    pub Square<T: Float>(Config): Maps<T> {
        dims { D = features, E = features }
        weight: Linear[D -> E],
        fn forward(x: T[B, D]) -> T[B, D] { self.weight(x).rename(E, D) }
    }
}

fn text<Y: Maps<F32>>() -> String {
    let recording =
        Stack::<F32, Y>::record(&Config { features: 5, layers: 2 }).unwrap_or_else(|e| panic!("{e}"));
    let entry = recording.entry("main", Stack::forward, [("B", 2)]).unwrap_or_else(|e| panic!("{e}"));
    entry.finish().trace.to_string()
}

#[test]
fn blocks_that_are_parameters() {
    for (text, keys) in [
        (text::<Residual<F32>>(), ["first.inner.half.down.weight", "layers.*.plain.up.weight"]),
        (
            text::<Residual<F32, Square<F32>>>(),
            ["first.inner.half.weight.weight", "layers.*.plain.up.weight"],
        ),
        (text::<Square<F32>>(), ["first.norm.weight", "layers.*.weight.weight"]),
    ] {
        for key in keys {
            assert!(text.contains(key), "{key}: {text}");
        }
    }
}
