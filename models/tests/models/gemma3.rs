//! Tests that Tracewright records Gemma 3 from a configuration alone, with the names and shapes of
//! the checkpoint.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::support;

use std::collections::BTreeMap;

use dsl::EntryPoint;
use lower::{expand, lower};
use ops::ElementType;
use support::*;
use targets::Target;
use tracewright_models::{Architecture as _, GemmaConfig, ModelConfig, RopeScaling};

/// The names and shapes of the tensors in a checkpoint with this configuration, derived from
/// `modeling_gemma3.py`.
fn checkpoint(c: &GemmaConfig) -> BTreeMap<String, Vec<usize>> {
    let features = c.head_dim.unwrap();
    let (queries, keys) = (c.num_attention_heads * features, c.num_key_value_heads * features);
    let (d, f) = (c.hidden_size, c.intermediate_size);
    let mut all = BTreeMap::from([
        ("model.embed_tokens.weight".to_owned(), vec![c.vocab_size, d]),
        ("model.norm.weight".to_owned(), vec![d]),
    ]);
    for layer in 0..c.num_hidden_layers {
        let mut weight = |name: &str, shape: &[usize]| {
            all.insert(format!("model.layers.{layer}.{name}.weight"), shape.to_vec());
        };
        weight("self_attn.q_proj", &[queries, d]);
        weight("self_attn.k_proj", &[keys, d]);
        weight("self_attn.v_proj", &[keys, d]);
        weight("self_attn.o_proj", &[d, queries]);
        weight("self_attn.q_norm", &[features]);
        weight("self_attn.k_norm", &[features]);
        weight("mlp.gate_proj", &[f, d]);
        weight("mlp.up_proj", &[f, d]);
        weight("mlp.down_proj", &[d, f]);
        for norm in ["input", "post_attention", "pre_feedforward", "post_feedforward"] {
            weight(&format!("{norm}_layernorm"), &[d]);
        }
    }
    all
}

/// The numbers of parameters of the text towers, as transformers counts them on the meta device.
const PUBLISHED: [(&str, usize); 5] = [
    ("functiongemma-270m", 268_098_176),
    ("gemma-3-1b", 999_885_952),
    ("gemma-3-4b", 3_880_263_168),
    ("gemma-3-12b", 11_766_034_176),
    ("gemma-3-27b", 27_009_346_304),
];

/// A module that is built from the `config.json` alone has the parameters of the checkpoint. The
/// test prints the numbers of nodes, parameters and lowered operations.
#[test]
fn s4_gemma_3_is_weight_free() {
    for (name, total) in PUBLISHED {
        let model = config(&published(name));
        let ModelConfig::Gemma3(gemma) = &model else { panic!("no Gemma 3") };
        let traced = model.trace(ElementType::Bf16, &EntryPoint::all(1, 128, 4096)).unwrap();
        traced.trace.verify().unwrap();
        let module = lower(&expand(&traced.trace).unwrap(), &Target::host()).unwrap();
        let counts = traced.trace.counts().unwrap();
        println!("{name}: {counts:?}, {:?}", module.histogram());
        assert_eq!((counts.parameter_elements, counts.parameter_bytes), (total, 2 * total), "{name}");
        let found: BTreeMap<String, Vec<usize>> =
            parameters(&traced.trace).into_iter().map(|(key, ty)| (key, ty.shape)).collect();
        assert_eq!(found, checkpoint(gemma), "{name}");
        assert_eq!(module.parameters, traced.trace.parameters().unwrap());
        assert_eq!(traced.body_runs, 6, "local and global layers, for chunks, short ones and one token");
    }
}

/// A layer with a window caches the window and a chunk, whatever the context is. A layer without a
/// window caches the whole context.
#[test]
fn caches_are_as_long_as_they_must() {
    let model = config(&published("gemma-3-1b"));
    for context in [512, 640, 8192] {
        let traced = model.trace(ElementType::Bf16, &EntryPoint::all(1, 128, context)).unwrap();
        for entry in ["prefill", "decode", "score"] {
            let signature = traced.trace.entry(entry).unwrap().signature();
            let mut layers = 0;
            for argument in signature.arguments {
                let trace::Role::State { layer, .. } = argument.role else { continue };
                let slots = if (layer + 1).is_multiple_of(6) { context } else { context.min(512 + 128 - 1) };
                assert_eq!(argument.ty.shape, [1, 1, slots, 256], "{entry} {}", argument.name);
                layers = layers.max(layer + 1);
            }
            assert_eq!(layers, 26);
        }
    }
}

#[test]
fn published_configurations_are_read() {
    let read = |name: &str| match config(&published(name)) {
        ModelConfig::Gemma3(config) => config,
        other => panic!("{other:?}"),
    };
    let small = read("functiongemma-270m");
    assert_eq!(small.windows[..], read("gemma-3-1b").windows[..18]);
    assert_eq!(small.windows.iter().filter(|window| window.is_none()).count(), 3);
    assert_eq!((small.rope.theta, small.local_rope.as_ref().unwrap().theta), (1e6, 1e4));
    let tower = read("gemma-3-4b");
    assert_eq!((tower.num_attention_heads, tower.num_key_value_heads, tower.head_dim), (8, 4, Some(256)));
    assert_eq!(tower.element, Some(ElementType::Bf16));
    assert_eq!(tower.rope.scaling, RopeScaling::Linear { factor: 8.0 });
    assert_eq!(tower.local_rope.as_ref().unwrap().scaling, RopeScaling::Default);
    assert_eq!(read("gemma-3-27b").query_pre_attn_scalar, 168.0);
}

#[test]
fn configurations_that_mean_something_else_are_refused() {
    let base: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(published("gemma-3-1b")).unwrap()).unwrap();
    for (key, value, expected) in [
        ("attn_logit_softcapping", serde_json::json!(50.0), "transformers does not apply it"),
        ("use_bidirectional_attention", serde_json::json!(true), "transformers does not apply it"),
        ("layer_types", serde_json::json!(["full_attention"]), "a list of 26"),
        ("head_dim", serde_json::json!(255), "an even number"),
        ("sliding_widnow", serde_json::json!(512), "is not a known key"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut changed = base.clone();
        changed[key] = value;
        std::fs::write(folder.path().join("config.json"), changed.to_string()).unwrap();
        let error = ModelConfig::read(folder.path(), &[]).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(expected), "{error}");
    }
}
