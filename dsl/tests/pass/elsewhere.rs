//! Tests of fields that are blocks of another model, with the same or another configuration, and in
//! arrays.

use tracewright_dsl::{Cache, CausalLm, EntryPoint, F32, Position, Project};

mod base {
    use tracewright_dsl::{Cache, Float, Position, model};

    #[derive(Clone)]
    pub struct Config {
        pub vocabulary: usize,
        pub features: usize,
        pub hidden: usize,
        pub bias: bool,
    }

    model! {
        pub Base<T: Float>(Config) {
            dims { V = vocabulary, D = features, F = hidden }
            cache { V of [V, D] }
            embed: Embedding[V, D],
            mlp: Mlp,
            head: Linear[D -> V] = tied(embed),
            fn forward(tokens: i32[B, S], _at: Position, _cache: &mut Cache<T>) -> T[B, S, D] {
                self.mlp(self.embed(tokens))
            }
            fn logits(x: T[.., D]) -> f32[.., V] {
                self.head(x).to()
            }
        }

        /// A block that other models use as a field.
        pub Mlp {
            up: Linear[D -> F](bias if bias),
            down: Linear[F -> D],
            fn forward(x: T[B, S, D]) -> T[B, S, D] {
                self.down(self.up(x))
            }
        }
    }
}

mod wide {
    use super::base;
    use tracewright_dsl::{Cache, Float, Position, model};

    #[derive(Clone)]
    pub struct Config {
        pub base: base::Config,
        pub features: usize,
        pub layers: usize,
    }

    impl tracewright_dsl::Project<base::Config> for Config {
        fn project(&self) -> base::Config {
            base::Config { features: self.features, ..self.base.clone() }
        }

        fn project_at(&self, index: usize) -> base::Config {
            base::Config { hidden: self.base.hidden + index / 2, ..self.project() }
        }
    }

    model! {
        pub Wide<T: Float>(Config) {
            dims { V = 11, D = features, L = layers }
            cache { L of [D, D] }
            embed: Embedding[V, D],
            first: base::Mlp<T>,
            layers: [base::Mlp<T>; L],
            deep: [Deep<T>; L],
            last: Last,
            fn forward(tokens: i32[B, S], _at: Position, _cache: &mut Cache<T>) -> T[B, S, D] {
                let mut x = self.first.forward(self.embed(tokens));
                for layer in &self.layers {
                    x = layer.forward(x);
                }
                for layer in &self.deep {
                    x = layer.forward(x);
                }
                x
            }
            fn logits(x: T[.., D]) -> f32[.., V] {
                self.last(x).to()
            }
        }

        Last {
            // This block passes its configuration to the field without a conversion.
            same: Same<T>,
            fn forward(x: T[.., D]) -> T[.., V] { self.same.forward(x) }
        }
    }

    model! {
        // This block does not declare the axis F, which differs between the elements of the array.
        Deep<T: Float>(base::Config) {
            dims { D = features }
            inner: Inner,
            fn forward(x: T[B, S, D]) -> T[B, S, D] { self.inner(x) }
        }

        Inner {
            mlp: base::Mlp<T>,
            fn forward(x: T[B, S, D]) -> T[B, S, D] { self.mlp.forward(x) }
        }
    }

    model! {
        Same<T: Float>(Config) {
            dims { V = 11, D = features }
            head: Linear[D -> V],
            fn forward(x: T[.., D]) -> T[.., V] { self.head(x) }
        }
    }
}

#[test]
fn blocks_of_another_network() {
    let base = base::Config { vocabulary: 11, features: 5, hidden: 15, bias: false };
    let entries = EntryPoint::all(2, 3, 7);
    base::Base::<F32>::trace(&base, &entries).unwrap_or_else(|error| panic!("{error}"));

    let config = wide::Config { base: base::Config { bias: true, ..base }, features: 8, layers: 4 };
    let _: base::Config = config.project();
    let traced = wide::Wide::<F32>::trace(&config, &entries).unwrap_or_else(|error| panic!("{error}"));
    let text = traced.trace.to_string();
    for key in [
        "first.up.bias",
        "first.down.weight",
        "layers.*.up.weight",
        "deep.*.inner.mlp.up.weight",
        "last.same.head.weight",
    ] {
        assert!(text.contains(key), "{key}: {text}");
    }
    // The layers of each of the two arrays have two sizes, and the entry points have two shapes.
    assert_eq!(traced.body_runs, 8);
    let parameters = traced.trace.parameters().unwrap_or_else(|error| panic!("{error}"));
    let of = |key: &str| parameters.iter().find(|one| one.key == key).map(|one| one.ty.shape.to_vec());
    assert_eq!(of("layers.1.up.weight"), Some(vec![15, 8]));
    assert_eq!(of("layers.2.up.weight"), Some(vec![16, 8]));
    assert_eq!(of("deep.1.inner.mlp.up.weight"), Some(vec![15, 8]));
    assert_eq!(of("deep.2.inner.mlp.up.weight"), Some(vec![16, 8]));
    let _: fn(&wide::Wide<F32>, _, Position, &mut Cache<F32>) -> _ = CausalLm::forward;
}
