//! Tests that Tracewright records Llama from a configuration alone, with the names and shapes of
//! the checkpoint and the logits of transformers.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::support;

use std::collections::BTreeMap;
use std::fs;

use dsl::EntryPoint;
use lower::{expand, lower};
use ops::ElementType;
use support::*;
use targets::Target;
use trace::NodeKind;
use tracewright_models::{Architecture as _, LlamaConfig, ModelConfig};

/// The names and shapes of the tensors in a checkpoint with this configuration, derived from
/// `modeling_llama.py`.
fn checkpoint(c: &LlamaConfig) -> BTreeMap<String, Vec<usize>> {
    let head = c.head_dim.unwrap_or(c.hidden_size / c.num_attention_heads);
    let (queries, keys) = (c.num_attention_heads * head, c.num_key_value_heads * head);
    let (d, f) = (c.hidden_size, c.intermediate_size);
    let mut all = BTreeMap::from([
        ("model.embed_tokens.weight".to_owned(), vec![c.vocab_size, d]),
        ("model.norm.weight".to_owned(), vec![d]),
    ]);
    if !c.tie_word_embeddings {
        all.insert("lm_head.weight".to_owned(), vec![c.vocab_size, d]);
    }
    for layer in 0..c.num_hidden_layers {
        let mut linear = |name: &str, rows: usize, columns: usize, bias: bool| {
            all.insert(format!("model.layers.{layer}.{name}.weight"), vec![rows, columns]);
            if bias {
                all.insert(format!("model.layers.{layer}.{name}.bias"), vec![rows]);
            }
        };
        linear("self_attn.q_proj", queries, d, c.attention_bias);
        linear("self_attn.k_proj", keys, d, c.attention_bias);
        linear("self_attn.v_proj", keys, d, c.attention_bias);
        linear("self_attn.o_proj", d, queries, c.attention_out_bias);
        linear("mlp.gate_proj", f, d, c.mlp_bias);
        linear("mlp.up_proj", f, d, c.mlp_bias);
        linear("mlp.down_proj", d, f, c.mlp_bias);
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            all.insert(format!("model.layers.{layer}.{norm}.weight"), vec![d]);
        }
    }
    all
}

const PUBLISHED: [(&str, usize); 3] =
    [("llama-3.2-1b", 1_235_814_400), ("llama-3.1-8b", 8_030_261_248), ("llama-3.1-405b", 405_853_388_800)];

/// A module that is built from a `config.json` alone, in a read-only folder, has the parameters of
/// the checkpoint.
#[test]
fn s4_weight_free() {
    for (name, total) in PUBLISHED {
        let folder = tempfile::tempdir().unwrap();
        fs::copy(published(name), folder.path().join("config.json")).unwrap();
        let writable = fs::metadata(folder.path()).unwrap().permissions();
        let mut read_only = writable.clone();
        read_only.set_readonly(true);
        fs::set_permissions(folder.path(), read_only).unwrap();

        let model = config(folder.path());
        let ModelConfig::Llama(llama) = &model else { panic!("no Llama") };
        let traced = model.trace(ElementType::Bf16, &EntryPoint::all(1, 128, 2048)).unwrap();
        let expanded = expand(&traced.trace).unwrap();
        let module = lower(&expanded, &Target::host()).unwrap();

        let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
        assert_eq!(files, ["config.json"]);
        fs::set_permissions(folder.path(), writable).unwrap();

        traced.trace.verify().unwrap();
        let counts = traced.trace.counts().unwrap();
        println!("{name}: {counts:?}, {:?}", module.histogram());
        assert_eq!((counts.parameter_elements, counts.parameter_bytes), (total, 2 * total));
        let found: BTreeMap<String, Vec<usize>> =
            parameters(&traced.trace).into_iter().map(|(key, ty)| (key, ty.shape)).collect();
        assert_eq!(found, checkpoint(llama));
        assert_eq!(module.parameters, traced.trace.parameters().unwrap());
        assert_eq!(
            traced.body_runs, 3,
            "one kind of layer; prefill and score take chunks of one length and share it"
        );
        assert_eq!(traced.trace.functions.len(), 7);
    }
}

/// Each layer is a call of the same function with the prefix of the layer's weights.
#[test]
fn layers_are_calls() {
    let model = config(&published("llama-3.2-1b"));
    let traced = model.trace(ElementType::Bf16, &EntryPoint::all(1, 128, 2048)).unwrap();
    let trace = traced.trace.with_entries(&["decode"]);
    let decode = trace.entry("decode").unwrap();
    let mut prefixes = Vec::new();
    for id in decode.ids() {
        if let NodeKind::Call { function, prefix } = &decode.node(id).kind {
            assert_eq!(trace.function(*function).prefix, "model.layers.*");
            assert_eq!(*decode.node(id).provenance.path, **prefix);
            assert!(decode.node(id).provenance.file.ends_with("models/src/llama.rs"));
            prefixes.push(prefix.clone());
        }
    }
    let expected: Vec<String> = (0..16).map(|i| format!("model.layers.{i}")).collect();
    assert_eq!(prefixes, expected);
    let body = &trace.functions[0];
    assert!(body.parameters().all(|p| p.key.starts_with("model.layers.*.")));
}

/// Each combination of the optional keys results in the names and shapes of the checkpoint.
#[test]
fn optional_parts() {
    for (tied, attention_bias, mlp_bias, head_dim) in [
        (false, false, false, None),
        (true, true, false, Some(14)),
        (false, true, true, Some(2)),
        (true, false, true, None),
    ] {
        let ModelConfig::Llama(base) = config(&fixture("llama-mqa")) else { panic!("no Llama") };
        let (tie_word_embeddings, head_dim) = (tied, head_dim.or(base.head_dim));
        let attention_out_bias = attention_bias;
        let llama = LlamaConfig {
            tie_word_embeddings,
            attention_bias,
            attention_out_bias,
            mlp_bias,
            head_dim,
            ..base
        };
        let trace =
            ModelConfig::Llama(llama.clone()).trace(ElementType::F32, &EntryPoint::all(1, 2, 4)).unwrap();
        let found: BTreeMap<String, Vec<usize>> =
            parameters(&trace.trace).into_iter().map(|(key, ty)| (key, ty.shape)).collect();
        assert_eq!(found, checkpoint(&llama));
    }
}

/// Two runs write the same bytes, which contain no path of the machine.
#[test]
fn emission_is_deterministic() {
    let text = || {
        let model = config(&published("llama-3.2-1b"));
        let trace = model.trace(ElementType::Bf16, &EntryPoint::all(1, 16, 32)).unwrap().trace;
        let module = lower(&expand(&trace).unwrap(), &Target::host()).unwrap();
        [trace.to_string(), module.text, module.text_without_locs]
    };
    let first = text();
    assert_eq!(first, text());
    assert_eq!(first, std::thread::spawn(text).join().unwrap());
    for text in &first {
        assert!(!text.contains(env!("CARGO_MANIFEST_DIR")));
        // The path of each file begins with the folder of the file's crate.
        for file in text.split(" at \"").skip(1).chain(text.split("\"(\"").skip(1)) {
            assert!(file.starts_with("models/src/") || file.starts_with("dsl/src/"), "{}", &file[..40]);
        }
    }
}

/// At every position, the evaluator computes the same logits as transformers.
#[test]
fn m7_the_oracle_of_llama() {
    for name in ["llama-mha", "llama-mqa", "llama-tied", "llama-untied", "llama-bias", "llama-rope3"] {
        judged_by_transformers(&fixture(name));
    }
}
