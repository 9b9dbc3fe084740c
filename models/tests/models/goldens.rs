//! Goldens of the recorded trace and the lowered module of a Llama with two layers. All extents
//! differ: B=1, K=2, G=3, E=4, S=5, N=7, F=10, V=11, D=14.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::Path;

use dsl::{EntryInput, EntryPoint, ExpertsMode, LogitsMode};
use expect_test::expect_file;
use lower::{expand, lower};
use ops::ElementType;
use targets::Target;
use trace::Trace;
use tracewright_models::{Architecture as _, LlamaConfig, ModelConfig, RopeParameters};

fn recorded() -> Trace {
    let config = LlamaConfig {
        vocab_size: 11,
        hidden_size: 14,
        intermediate_size: 10,
        num_hidden_layers: 2,
        num_attention_heads: 6,
        num_key_value_heads: 2,
        head_dim: Some(4),
        rms_norm_eps: 1e-5,
        rope: RopeParameters::plain(10_000.0),
        local_rope: None,
        windows: [].into(),
        tie_word_embeddings: true,
        attention_bias: false,
        attention_out_bias: false,
        mlp_bias: true,
        max_position_embeddings: 7,
        element: None,
    };
    let prefill = EntryPoint {
        name: "prefill".into(),
        batch: 1,
        chunk: 5,
        context: 7,
        input: EntryInput::Tokens,
        logits: LogitsMode::Next,
        hidden: false,
        kv: trace::KvFormat::Computed,
        experts: ExpertsMode::Auto,
    };
    ModelConfig::Llama(config).trace(ElementType::Bf16, &[prefill]).unwrap().trace
}

fn golden(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(name).to_str().unwrap().to_owned()
}

#[test]
fn recorded_as_the_paper_says() {
    let trace = recorded();
    trace.verify().unwrap();
    assert_eq!(trace.to_string().parse(), Ok(trace.clone()));
    expect_file![golden("llama.trace")].assert_eq(&trace.to_string());
}

#[test]
fn k7_lowered() {
    let module = lower(&expand(&recorded()).unwrap(), &Target::host()).unwrap();
    expect_file![golden("llama.mlir")].assert_eq(&module.text);
}

#[test]
fn inlined() {
    let inlined = recorded().inlined();
    inlined.verify().unwrap();
    assert_eq!(inlined.functions.len(), 1);
    assert_eq!(inlined.parameters(), recorded().parameters());
    let module = lower(&expand(&inlined).unwrap(), &Target::host()).unwrap();
    assert!(!module.text.contains("call @") && module.text.contains("loc(\"model/layers/1/mlp/up_proj\"("));
    let functions = lower(&expand(&recorded()).unwrap(), &Target::host()).unwrap();
    assert_eq!(module.signatures, functions.signatures);
}
