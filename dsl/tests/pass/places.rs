//! Tests that an error in a function body has the line of the code that caused the error.

use tracewright_dsl::{Cache, CausalLm, EntryPoint, F32, Float, Position, TraceErrorKind, model};

#[derive(Clone)]
struct Config {
    fault: usize,
}

model! {
    Net<T: Float>(Config) {
        dims { V = 11, D = 5, L = 2 }
        cache { L of [L, D] }
        embed: Embedding[V, D],
        layers: [Layer; L],
        head: Linear[D -> V],

        fn forward(tokens: i32[B, S], _at: Position, _cache: &mut Cache<T>) -> T[B, S, D] { // fault 0
            let mut x = self.embed(tokens);
            for layer in &self.layers {
                x = layer.forward(x, self.config.fault);
            }
            match self.config.fault {
                0 => x.permute(&[S, B, D]),
                _ => x,
            }
        }

        fn logits(x: T[.., D]) -> f32[.., V] {
            match self.config.fault {
                1 => self.head(x.rename(D, V)).to(), // fault 1
                _ => self.head(x).to(),
            }
        }
    }

    Layer {
        inner: Inner,
        fn forward(x: T[B, S, D], fault: usize) -> T[B, S, D] {
            match fault {
                2 => self.inner(x, x.rename(D, V)),
                3 => self.inner(x, x.permute(&[D, S, B])),
                4 => x.sum(V), // fault 4
                _ => self.inner(x, x),
            }
        }
    }

    Inner {
        norm: RmsNorm[D],
        fn forward(
            x: T[B, S, D],
            y: T[B, S, D], // fault 2, fault 3
        ) -> T[B, S, D] {
            self.norm(x) + y
        }
    }
}

#[test]
fn errors_have_the_place_of_the_line() {
    for fault in 0..5 {
        let error = Net::<F32>::trace(&Config { fault }, &EntryPoint::all(2, 3, 7)).unwrap_err();
        let marked = include_str!("places.rs").lines().position(|line| {
            line.ends_with("// fault 2, fault 3") && (2..=3).contains(&fault)
                || line.ends_with(&format!("// fault {fault}"))
        });
        assert_eq!(
            Some(error.provenance.line as usize),
            marked.map(|index| index + 1),
            "fault {fault}: {error}"
        );
        assert!(error.provenance.file.ends_with("places.rs"), "{error}");
        let signature = matches!(*error.kind, TraceErrorKind::Signature { .. });
        assert_eq!(signature, [0, 2, 3].contains(&fault), "{error}");
    }
    Net::<F32>::trace(&Config { fault: 5 }, &EntryPoint::all(2, 3, 7))
        .unwrap_or_else(|error| panic!("{error}"));
}
