use tracewright_dsl::*;

#[derive(Clone)]
struct Config {
    hidden_size: usize,
    num_layers: usize,
    tied: bool,
    eps: f64,
}

model! {
    Net<T: Float>(Config) {
        dims { V = 11, D = hidden_size, E = 4, L = num_layers }
        model: Model,
        layers: [Model; L],
        wide: Embedding<F32>[V, D],
        norm: RmsNorm[D] = tied(norm),
        //    ^^^^^^^ a `RmsNorm` cannot be tied
        kind: Linear[D -> V] = tied(last) if tied,
        //                          ^^^^ a `Linear` cannot be tied to a `RmsNorm`
        shape: Linear[D -> V] = tied(model.narrow) if tied,
        //                                 ^^^^^^ `shape` stores `[V, D]` but `narrow` stores `[V, E]`
        element: Linear[D -> V] = tied(wide) if tied,
        //                             ^^^^ `wide` has another element type than `element`
        leaf: Linear[D -> V] = tied(norm.weight) if tied,
        //                          ^^^^ `norm` is a `RmsNorm`, which has no fields
        array: Linear[D -> V] = tied(layers.embed) if tied,
        //                           ^^^^^^ `layers` is an array, in which no single weight can be named
        block: Linear[D -> V] = tied(model) if tied,
        //                           ^^^^^ `model` is a block; only a leaf has a weight
        itself: Linear[D -> V] = tied(itself) if tied,
        //                            ^^^^^^ `itself` is tied to itself
        unknown: Linear[D -> V] = tied(model.embd) if tied,
        //                                   ^^^^ the block `Model` has no field `embd`; did you mean `embed`?
        unknown_block: Linear[D -> V] = tied(modl.embed) if tied,
        //                                   ^^^^ the block `Net` has no field `modl`; did you mean `model`?
        last: RmsNorm[D],
        fn forward(x: i32[B]) -> T[B, V] {
            let x = self.last(self.norm(self.model(x) + self.layers[0].forward(x) + self.wide(x).to::<T>()));
            let heads = self.kind(x) + self.shape(x) + self.element(x) + self.leaf(x) + self.array(x);
            heads + self.block(x) + self.itself(x) + self.unknown(x) + self.unknown_block(x)
        }
    }
    Model {
        embed: Embedding[V, D],
        narrow: Embedding[V, E],
        fn forward(x: i32[B]) -> T[B, D] { self.embed(x) + self.narrow(x).rename(E, D) }
    }
}

fn main() {}
