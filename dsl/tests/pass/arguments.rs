//! Tests of all kinds of arguments and results. The tests include a renamed axis, axes that only a
//! signature names, and keywords as names.

use tracewright_dsl::{Axis, Cache, CausalLm, EntryPoint, F32, Float, Position, Tensor, TraceArg};
use tracewright_dsl::{dot, model, softmax};

#[derive(Clone)]
struct Config {
    features: usize,
    layers: usize,
}

/// A struct with tensors and plain data.
#[derive(Clone, TraceArg)]
struct Context<T: Float> {
    shift: Tensor<T>,
    kind: Kind,
    names: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, TraceArg)]
enum Kind {
    Plain,
    Scaled { by: f64 },
    Twice(usize, Axis),
}

#[derive(Clone, TraceArg)]
struct Counter(usize);

#[derive(Clone, TraceArg)]
struct Nothing;

model! {
    Net<T: Float>(Config) {
        dims { V = 11, D = features, L = layers, E = 2 * (D / 5) }
        cache { L of [L, D] }
        embed: Embedding[V, D],
        layers: [Layer; L],
        head: Linear[D -> V] = tied(embed),
        shift: Weight[D],

        #[allow(unused_variables)]
        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let mut counter = Counter(0);
            let mut x = self.embed(tokens);
            for (index, layer) in self.layers.iter().enumerate() {
                let kind = match index {
                    0 => Kind::Plain,
                    1 | 2 => Kind::Scaled { by: 0.5 },
                    _ => Kind::Twice(2, D),
                };
                let context = Context { shift: self.shift(), kind, names: vec!["a".into()] };
                let (y, scores) = layer.forward(x, &context, &mut counter, Nothing);
                assert_eq!(scores.extent(Axis("C")), tokens.extent(S));
                x = y;
            }
            assert_eq!(counter.0, 1, "state that is no tensor comes back too");
            x
        }

        fn logits(x: T[.., D]) -> f32[.., V] {
            self.head(x).to()
        }
    }

    Layer {
        attention: SelfAttention,
        norm: RmsNorm<F32>[D],
        factor: Weight<F32>[],

        fn forward(mut x: T[B, S, D], context: &Context<T>, r#ref: &mut Counter, _nothing: Nothing) -> (T[B, S, D], f32[B, S, C]) {
            r#ref.0 = 1;
            x = x + context.shift;
            let (y, scores) = self.attention(x);
            if context.kind == Kind::Plain {
                return (y, scores);
            }
            let normed = self.norm(y.to());
            let parts = [normed, normed * self.factor()];
            (parts[0].to::<T>() + parts[1].to(), scores)
        }
    }

    SelfAttention {
        q: Linear[D -> E],
        k: Linear[D -> E],

        fn forward(x: T[B, S, D]) -> (T[B, S, D], f32[B, S, C]) {
            let scores = dot(self.q(x), self.k(x).rename(S, C), E);
            (self.r#move(x, scores, true), scores.to())
        }

        fn r#move(x: T[B, S, D], scores: T[B, S, C], normed: bool) -> T[B, S, D] {
            let weights = if normed { softmax(scores, C) } else { scores };
            dot(weights, x.rename(S, C), C)
        }
    }
}

#[test]
fn arguments_and_results_of_every_kind() {
    let config = Config { features: 5, layers: 4 };
    let entries = EntryPoint::all(2, 3, 7);
    let traced = Net::<F32>::trace(&config, &entries).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(traced.body_runs, 6, "three kinds of layer in chunks of 3 and of 1");
}
