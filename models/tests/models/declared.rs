//! Tests that a trace has the element types and the kinds of layers of the declaration.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::support;

use dsl::{
    Attend, Bf16, Bool, Cache, CausalLm, EntryPoint, F16, F32, Float, I8, I32, Kv, Mask, Position, attend,
    model,
};
use lower::{expand, lower};
use ops::ElementType;
use support::*;
use targets::Target;
use trace::{NodeKind, Trace};
use tracewright_models::{Architecture as _, Llama, ModelConfig, RopeParameters};

#[derive(Clone)]
struct Config {
    layers: usize,
    kinds: usize,
}

model! {
    /// A network with a field of each element type, an output head in f32, and the number of layer
    /// kinds in the configuration.
    Net<T: Float>(Config) {
        dims { V = 13, D = 10, K = 3, E = 4, L = layers }
        cache { L of [K, E] }

        embed: Embedding[V, D],
        layers: [Layer; L],
        half: Weight<F16>[D],
        brain: Weight<Bf16>[D],
        count: Weight<I32>[D],
        small: Weight<I8>[D],
        kept: Weight<Bool>[D],
        lm_head: Linear<F32>[D -> V],

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let rope = RopeParameters::plain(100.0).frequencies(self.dim(E), cache.context);
            let causal = Attend::rotary(at, S, tokens.extent(S), &rope, cache.context);
            let mut x = self.embed(tokens);
            for (i, layer) in self.layers.iter().enumerate() {
                let mut at = causal.clone();
                if i % self.config.kinds > 0 {
                    at.mask &= Mask::window(2 + i % self.config.kinds);
                }
                x = layer.forward(x, &at, cache.state(i));
            }
            x
        }
        fn logits(x: T[.., D]) -> f32[.., V] {
            let shift = self.half().to::<F32>() + self.brain().to() + self.count().to() + self.small().to();
            let x: dsl::Tensor<F32> = x.to();
            self.lm_head(self.kept().select(x + shift, x))
        }
    }

    Layer {
        q: Linear[D -> K, E],
        k: Linear[D -> K, E],
        v: Linear[D -> K, E],
        o: Linear[K, E -> D],

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let (k, v) = kv.append(at.rope(self.k(x)), self.v(x), at);
            x + self.o(attend(at.rope(self.q(x)), k, v, at))
        }
    }
}

/// The element type of the parameter `key` in the text of the module.
fn declared_in_text(text: &str, key: &str) -> String {
    let head = format!("util.global private @\"{key}\" = ");
    let line = text.lines().find(|line| line.trim_start().starts_with(&head)).expect("a global");
    line.rsplit_once('x').expect("a shape").1.trim_end_matches('>').to_owned()
}

/// S3: the model has a default element type, and some fields have their own element type.
fn check_element_types<T: Float>(default: ElementType) {
    let traced = Net::<T>::trace(&Config { layers: 2, kinds: 1 }, &EntryPoint::all(2, 3, 7)).unwrap();
    let module = lower(&expand(&traced.trace).unwrap(), &Target::host()).unwrap();
    for (key, ty) in parameters(&traced.trace) {
        let expected = match key.as_str() {
            "half" => ElementType::F16,
            "brain" => ElementType::Bf16,
            "count" => ElementType::I32,
            "small" => ElementType::I8,
            "kept" => ElementType::I1,
            "lm_head.weight" => ElementType::F32,
            _ => default,
        };
        assert_eq!(ty.element, expected, "{key}");
        assert_eq!(declared_in_text(&module.text, &key), expected.name(), "{key}");
    }
    let reparsed: Trace = traced.trace.to_string().parse().unwrap();
    for function in &reparsed.functions {
        for (name, ty) in function.inputs() {
            let expected = match (name, ty.rank()) {
                ("tokens", _) | (_, 0 | 1) => ElementType::I32,
                _ => default,
            };
            assert_eq!(ty.element, expected, "{}: {name}", function.name);
        }
        // The residual stream always has the default element type.
        for id in function
            .ids()
            .filter(|&id| function.name == "layer" && matches!(function.node(id).kind, NodeKind::Op(_)))
        {
            // Positions are integers, and all floats have the default element type.
            let element = function.node(id).ty().element;
            assert!(!element.is_float() || element == default, "{reparsed}");
        }
    }
    assert!(module.text.contains("xbf16>") && module.text.contains("xi1>"));
}

#[test]
fn s1_and_s3_placeholders_carry_the_declared_element_type() {
    check_element_types::<F32>(ElementType::F32);
    check_element_types::<F16>(ElementType::F16);
    check_element_types::<Bf16>(ElementType::Bf16);
}

/// S3 for Llama: `--dtype` sets the default element type of the whole model.
#[test]
fn s3_the_default_of_llama() {
    let model = config(&published("llama-3.2-1b"));
    for element in [ElementType::F32, ElementType::F16, ElementType::Bf16] {
        let trace = model.trace(element, &EntryPoint::all(1, 2, 4)).unwrap().trace;
        assert!(parameters(&trace).values().all(|ty| ty.element == element));
    }
    // A user of the library names the element type in Rust.
    let ModelConfig::Llama(llama) = &model else { panic!("no Llama") };
    let typed = Llama::<F16>::trace(&llama.clone().into(), &EntryPoint::all(1, 2, 4)).unwrap().trace;
    assert_eq!(typed, model.trace(ElementType::F16, &EntryPoint::all(1, 2, 4)).unwrap().trace);
}

/// The body of a layer runs once for each kind of layer and each chunk length, whatever the number
/// of layers.
#[test]
fn bodies_run_once_for_each_kind() {
    for (layers, kinds) in [(1, 1), (6, 1), (6, 2), (24, 2), (7, 3)] {
        let traced = Net::<F32>::trace(&Config { layers, kinds }, &EntryPoint::all(1, 3, 9)).unwrap();
        assert_eq!(traced.body_runs, 2 * kinds, "{layers} layers of {kinds} kinds");
        let counts = traced.trace.counts().unwrap();
        assert_eq!((counts.functions, counts.parameters), (2 * kinds + 3, 4 * layers + 7));
    }
}
