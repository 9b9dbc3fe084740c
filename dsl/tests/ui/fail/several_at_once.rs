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
        dims { D = hidden_size, L = num_layers }
        layers: [Layr; L],
        //       ^^^^ no block `Layr` in this `model!`; did you mean `Layer`?
        norm: RmsNorm[E],
        //            ^ unknown axis `E`
        head: Linear[D -> L](bia),
        //                   ^^^ `Linear` has no setting `bia`; it has `bias`
        fn forward(x: T[B, D]) -> T[B, D] { self.head(self.norm(self.layers[0].forward(x))) }
    }
    Layer {
        norm: RmsNorm[D],
        fn forward(x: half[B, D]) -> T[B, B] { self.norm(x) }
        //            ^^^^ unknown element type `half`
        //                                ^ axis `B` occurs twice in one tensor
    }
}

fn main() {}
