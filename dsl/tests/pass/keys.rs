//! Tests the parameters of a trace and the tensors from which parameters are built. The networks
//! have keys that differ from field names, transposed and stacked weights, and several weights in
//! one tensor.

use tracewright_dsl::{Attend, Cache, CausalLm, EntryPoint, F32, Float, Kv, Position, attend, dot, model};

#[derive(Clone)]
pub struct Config {
    layers: usize,
    conv: bool,
    tied: bool,
}

mod other {
    use tracewright_dsl::{Float, model};

    model! {
        pub Gate<T: Float>(super::Config) {
            dims { D = 8 }
            scale: Weight[D] at "gate.scale",
            fn forward(x: T[B, S, D]) -> T[B, S, D] { x * self.scale() }
        }
    }
}

model! {
    Net<T: Float>(Config) {
        dims { V = 11, D = 8, H = 2, E = 4, P = H + H + H, X = 3, F = 5, L = layers }
        cache { L of [H, E] }
        body: Body at "transformer",
        decoder: Linear[D -> V](bias) at "cls.decoder" = tied(body.embed) if tied,

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            self.body(tokens, at, cache)
        }
        fn logits(x: T[.., D]) -> f32[.., V] {
            self.decoder(x).to()
        }
    }

    Body {
        embed: Embedding[V, D] at "wte",
        layers: [Layer; L] at "encoder.h",
        gate: other::Gate<T> at "extra",
        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let at = Attend::causal(at, S);
            let mut x = self.embed(tokens);
            for (i, layer) in self.layers.iter().enumerate() {
                x = layer.forward(x, &at, cache.state(i));
            }
            self.gate.forward(x)
        }
    }

    Layer {
        norm: LayerNorm[D] at "LayerNorm",
        c_attn: Linear[D -> P, E](bias, transposed if conv) at "attn.c_attn",
        c_proj: Linear[H, E -> D](transposed) at "attn.c_proj",
        up: Weight[X, F, D] at "experts.*.w1.weight",
        down: Weight[X, D, F] at "experts.*.w2.weight",
        factor: Weight[X] at "experts.*.scale",

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let [q, k, v] = self.c_attn(self.norm(x)).split(P, [self.dim(H); 3]).map(|part| part.rename(P, H));
            let (k, v) = kv.append(k, v, at);
            let x = x + self.c_proj(attend(q, k, v, at));
            let expert = dot(dot(x, self.up(), D), self.down(), F);
            x + dot(expert, self.factor(), X)
        }
    }
}

#[test]
fn keys_that_are_named() {
    for conv in [false, true] {
        let config = Config { layers: 2, conv, tied: true };
        let traced =
            Net::<F32>::trace(&config, &EntryPoint::all(1, 3, 7)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(traced.body_runs, 2, "one kind of layer, in chunks of 3 and of 1");
        let parameters = traced.trace.parameters().unwrap_or_else(|error| panic!("{error}"));
        let keys: Vec<&str> = parameters.iter().map(|parameter| parameter.key.as_str()).collect();
        let layer = [
            "LayerNorm.bias",
            "LayerNorm.weight",
            "attn.c_attn.bias",
            "attn.c_attn.weight",
            "attn.c_proj.weight",
            "experts.*.scale",
            "experts.*.w1.weight",
            "experts.*.w2.weight",
        ];
        let mut expected: Vec<String> =
            (0..2).flat_map(|i| layer.map(|key| format!("transformer.encoder.h.{i}.{key}"))).collect();
        expected.extend([
            "transformer.extra.gate.scale".into(),
            "transformer.wte.bias".into(),
            "transformer.wte.weight".into(),
        ]);
        assert_eq!(keys, expected);

        let sources = |key: &str| -> Vec<String> {
            let parameter = parameters.iter().find(|parameter| parameter.key == key);
            let sources = parameter.iter().flat_map(|parameter| parameter.sources());
            sources.map(|(key, ty)| format!("{key}: {ty}")).collect()
        };
        let stored = if conv { "[8, 24]" } else { "[24, 8]" }.replace(' ', "");
        assert_eq!(
            sources("transformer.encoder.h.1.attn.c_attn.weight"),
            [format!("transformer.encoder.h.1.attn.c_attn.weight: f32{stored}")]
        );
        let experts = (0..3).map(|x| format!("transformer.encoder.h.1.experts.{x}.w1.weight: f32[5,8]"));
        assert_eq!(sources("transformer.encoder.h.1.experts.*.w1.weight"), experts.collect::<Vec<_>>());
        assert_eq!(
            sources("transformer.encoder.h.0.experts.*.scale")[2],
            "transformer.encoder.h.0.experts.2.scale: f32[]"
        );

        let text = traced.trace.to_string();
        assert_eq!(text.parse(), Ok(traced.trace));
        let path = "from \"transformer.encoder.h.*.attn.c_attn\"";
        assert!(text.contains(path), "the path in a dump is the key's: {text}");
        let recipe = "parameter \"transformer.encoder.h.*.attn.c_proj.weight\" = permute order=[1,0] \
                      (\"transformer.encoder.h.*.attn.c_proj.weight\" : f32[8,8]) () : f32[8,8]";
        assert!(text.contains(recipe), "{text}");
    }
}
