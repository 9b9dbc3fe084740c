//! Tests of all spellings of `config.json`, and of the errors for an invalid `config.json`.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::{Path, PathBuf};

use expect_test::{Expect, expect};
use ops::ElementType;
use serde_json::{Value, json};
use tracewright_models::{Architecture as _, LlamaConfig, ModelConfig, RopeParameters, RopeScaling};

/// The keys of a published Llama configuration that have no default.
fn minimal() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 11, "hidden_size": 24, "intermediate_size": 10, "num_hidden_layers": 2,
        "num_attention_heads": 6,
    })
}

/// The configuration `minimal` with changed or additional keys. A change to null removes the key.
fn with(changes: Value) -> Value {
    let mut config = minimal();
    let keys = config.as_object_mut().unwrap();
    for (key, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(keys.remove(key)),
            value => drop(keys.insert(key.clone(), value.clone())),
        }
    }
    config
}

fn read_text(text: &str, allowed: &[&str]) -> Result<LlamaConfig, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, text).unwrap();
    let allowed: Vec<String> = allowed.iter().map(|key| key.to_string()).collect();
    match ModelConfig::read(folder.path(), &allowed) {
        Ok(ModelConfig::Llama(config)) => Ok(config),
        Ok(other) => panic!("no Llama: {other:?}"),
        Err(error) => Err(error.to_string().replace(path.to_str().unwrap(), "config.json")),
    }
}

fn read(config: &Value) -> Result<LlamaConfig, String> {
    read_text(&config.to_string(), &[])
}

fn published(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("presets").join(name)
}

#[test]
fn defaults_are_those_of_transformers() {
    let expected = LlamaConfig {
        vocab_size: 11,
        hidden_size: 24,
        intermediate_size: 10,
        num_hidden_layers: 2,
        num_attention_heads: 6,
        num_key_value_heads: 6,
        head_dim: None,
        rms_norm_eps: 1e-6,
        rope: RopeParameters::plain(10_000.0),
        local_rope: None,
        windows: [].into(),
        tie_word_embeddings: false,
        attention_bias: false,
        attention_out_bias: false,
        mlp_bias: false,
        max_position_embeddings: 2048,
        element: None,
    };
    assert_eq!(read(&minimal()), Ok(expected.clone()));
    // In these keys, transformers writes null for the default.
    let nulls =
        r#""head_dim": null, "num_key_value_heads": null, "rope_scaling": null, "pad_token_id": null"#;
    let text = minimal().to_string().replacen('{', &format!("{{{nulls},"), 1);
    assert_eq!(read_text(&text, &[]), Ok(expected));
}

#[test]
fn published_values() {
    let ModelConfig::Llama(config) = ModelConfig::read(published("llama-3.2-1b.json"), &[]).unwrap() else {
        panic!("no Llama")
    };
    assert_eq!(
        config,
        LlamaConfig {
            vocab_size: 128_256,
            hidden_size: 2048,
            intermediate_size: 8192,
            num_hidden_layers: 16,
            num_attention_heads: 32,
            num_key_value_heads: 8,
            head_dim: Some(64),
            rms_norm_eps: 1e-5,
            rope: RopeParameters {
                theta: 500_000.0,
                partial_rotary_factor: 1.0,
                scaling: RopeScaling::Llama3 {
                    factor: 32.0,
                    low_freq_factor: 1.0,
                    high_freq_factor: 4.0,
                    original_max_position_embeddings: 8192.0,
                },
            },
            local_rope: None,
            windows: [].into(),
            tie_word_embeddings: true,
            attention_bias: false,
            attention_out_bias: false,
            mlp_bias: false,
            max_position_embeddings: 131_072,
            element: Some(ElementType::Bf16),
        }
    );
}

/// The two configurations of each pair have the same meaning. The first has the keys of
/// transformers 4, and the second has the keys of transformers 5.
#[test]
fn old_and_new_spelling_are_equal() {
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    let mut llama3_new = llama3.clone();
    llama3_new["rope_theta"] = json!(5e5);
    let pairs = [
        (json!({"torch_dtype": "bfloat16"}), json!({"dtype": "bfloat16"})),
        (json!({"torch_dtype": "float16"}), json!({"dtype": "torch.float16"})),
        (json!({"rope_theta": 5e5}), json!({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})),
        (json!({"rope_theta": 10000}), json!({"rope_parameters": {"rope_theta": 10000.0}})),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 2.0}}),
            json!({"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 10000}}),
        ),
        (json!({"rope_theta": 5e5, "rope_scaling": llama3}), json!({"rope_parameters": llama3_new})),
        (
            json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
            json!({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}),
        ),
        // The original context is next to the object or in the object. The factor is the ratio of
        // the extended context to the original context.
        (
            json!({"original_max_position_embeddings": 512, "rope_scaling": {"type": "yarn", "factor": 4.0}}),
            json!({"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 512}}),
        ),
        (
            json!({"original_max_position_embeddings": 512,
                "rope_scaling": {"type": "su", "short_factor": [1, 1], "long_factor": [2, 3]}}),
            json!({"rope_parameters": {"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0, 1.0],
                "long_factor": [2.0, 3.0], "original_max_position_embeddings": 512}}),
        ),
        // transformers 4.45 writes the two keys `type` and `rope_type`.
        (
            json!({"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.0}}),
            json!({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        ),
    ];
    for (old, new) in pairs {
        let (old_read, new_read) = (read(&with(old.clone())), read(&with(new.clone())));
        assert!(old_read.is_ok(), "{old}: {old_read:?}");
        assert_eq!(old_read, new_read, "{old} against {new}");
    }
}

#[test]
fn keys_without_meaning_are_ignored_and_allowed_ones_pass() {
    let ignored = json!({
        "_name_or_path": "x", "attention_dropout": 0.1, "bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 0,
        "initializer_range": 0.02, "model_type": "llama", "pretraining_tp": 1, "transformers_version": "5.0.0",
        "use_cache": false, "hidden_act": "silu",
    });
    assert_eq!(read(&with(ignored)), read(&minimal()));

    let text = with(json!({"sliding_window": 4096})).to_string();
    assert!(read_text(&text, &[]).is_err());
    assert_eq!(read_text(&text, &["sliding_window"]), read(&minimal()));
    let nested = with(json!({"rope_scaling": {"type": "default", "beta": 1.0}})).to_string();
    assert_eq!(read_text(&nested, &["rope_scaling.beta"]), read(&minimal()));
    // In a file that a user wrote, the key `model_type` is enough.
    assert_eq!(read(&with(json!({"architectures": null, "model_type": "llama"}))), read(&minimal()));
}

fn check(changes: Value, expected: Expect) {
    expected.assert_eq(&read(&with(changes)).expect_err("an error"));
}

#[test]
fn m19_a_key_that_cannot_be_used_is_named() {
    check(
        json!({"hidden_size": null}),
        expect![[r#"
        `config.json`: 1 problem(s)
          `hidden_size` is missing, expected a positive integer"#]],
    );
    check(
        json!({"vocab_size": "many", "rms_norm_eps": -1e-5, "mlp_bias": 0}),
        expect![[r#"
            `config.json`: 3 problem(s)
              `mlp_bias` is 0, expected true or false
              `vocab_size` is "many", expected a positive integer, at most 16777216
              `rms_norm_eps` is -0.00001, expected a positive number"#]],
    );
    check(
        json!({"num_hidden_layers": 0}),
        expect![[r#"
            `config.json`: 1 problem(s)
              `num_hidden_layers` is 0, expected a positive integer, at most 4096"#]],
    );
    // For this key, transformers does not replace null by the default either.
    let text = with(json!({"rms_norm_eps": 7})).to_string().replace('7', "null");
    expect![[r#"
        `config.json`: 1 problem(s)
          `rms_norm_eps` is null, expected a positive number"#]]
    .assert_eq(&read_text(&text, &[]).expect_err("an error"));
    check(
        json!({"rope_theta": 1e-300}),
        expect![[r#"
            `config.json`: 1 problem(s)
              `rope_theta` is 1e-300, with a frequency of inf, expected frequencies above 0, as `rope_scaling` stretches them"#]],
    );
    check(
        json!({"rope_scaling": {"rope_type": "linear", "factor": 1e300}}),
        expect![[r#"
            `config.json`: 1 problem(s)
              `rope_theta` is 10000.0, with a frequency of 0, expected frequencies above 0, as `rope_scaling` stretches them"#]],
    );
    check(
        json!({"hidden_act": "gelu"}),
        expect![[r#"
        `config.json`: 1 problem(s)
          `hidden_act` is "gelu", expected one of ["silu"]"#]],
    );
    check(
        json!({"pretraining_tp": 2}),
        expect![[r#"
        `config.json`: 1 problem(s)
          `pretraining_tp` is 2, expected 1"#]],
    );
    check(
        json!({"head_dim": 5}),
        expect![[r#"
        `config.json`: 1 problem(s)
          `head_dim` is 5, expected an even number: rotary embedding pairs features"#]],
    );
    check(
        json!({"num_atention_heads": 6, "num_attention_heads": null}),
        expect![[r#"
        `config.json`: 2 problem(s)
          `num_attention_heads` is missing, expected a positive integer
          `num_atention_heads` is not a known key, the nearest is `num_attention_heads`"#]],
    );
    check(
        json!({"sliding_window": 4096, "rope_tetha": 5e5}),
        expect![[r#"
        `config.json`: 2 problem(s)
          `sliding_window` is not a known key
          `rope_tetha` is not a known key, the nearest is `rope_theta`"#]],
    );
    check(
        json!({"dtype": "float8_e4m3fn"}),
        expect![[r#"
        `config.json`: 1 problem(s)
          `dtype` is "float8_e4m3fn", expected float32, float16 or bfloat16"#]],
    );
}

#[test]
fn m19_a_rotary_embedding_that_cannot_be_used_is_named() {
    check(
        json!({"rope_scaling": {"type": "linear"}}),
        expect![[r#"
            `config.json`: 1 problem(s)
              `rope_scaling.factor` is missing, expected a positive number"#]],
    );
    check(
        json!({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}),
        expect![[r#"
        `config.json`: 1 problem(s)
          `rope_scaling.rope_type` is "spiral", expected one of default, linear, dynamic, llama3, yarn, longrope, proportional"#]],
    );
    check(
        json!({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0, 2], "long_factor": [1.0, -2.0]}}),
        expect![[r#"
        `config.json`: 1 problem(s)
          `rope_scaling.long_factor` is [1.0,-2.0], expected a list of positive numbers"#]],
    );
    check(
        json!({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0, 2.0]}}),
        expect![[r#"
        `config.json`: 1 problem(s)
          `short_factor` is 1 numbers, expected 2, one for each pair of the 4 rotated features"#]],
    );
    check(
        json!({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "head_dim": 2}),
        expect![[r#"
        `config.json`: 1 problem(s)
          `head_dim` is 2, expected more than two features to rotate with a dynamic base"#]],
    );
    // Llama always rotates all features of a head, so Tracewright rejects a key that selects fewer
    // features.
    check(
        json!({"partial_rotary_factor": 0.5}),
        expect![[r#"
        `config.json`: 1 problem(s)
          `partial_rotary_factor` is not a known key"#]],
    );
    check(
        json!({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "facto": 2.0}}),
        expect![[r#"
        `config.json`: 1 problem(s)
          `rope_scaling.facto` is not a known key"#]],
    );
    check(
        json!({"rope_scaling": 2.0}),
        expect![[r#"
        `config.json`: 1 problem(s)
          `rope_scaling` is a number, expected an object"#]],
    );
    for (architectures, found) in [
        (json!(["FooForCausalLM"]), "FooForCausalLM"),
        (json!([]), "(none)"),
        (json!([5]), "5"),
        (json!("Foo"), "Foo"),
    ] {
        assert_eq!(
            read(&with(json!({"architectures": architectures}))).expect_err("an error"),
            format!(
                "`config.json`: the architecture `{found}` is not supported, expected one of {:?}",
                tracewright_models::architectures()
            )
        );
    }
    check(
        json!({"quantization_config": {"quant_method": "hqq", "bits": 4}}),
        expect![
            "`config.json`: the checkpoint is quantized (`quantization_config`, method `hqq`), expected one of [\"awq\", \"bitsandbytes\", \"compressed-tensors\", \"fp8\", \"gptq\"]; use a GGUF file or the unquantized checkpoint of the model, or save one with `model.dequantize()` of transformers"
        ],
    );
    for (key, value, named) in [
        ("quantization_config", json!({"bits": 4}), "`quantization_config`, method `unknown`"),
        ("quantization_config", json!("fp8"), "`quantization_config`, method `unknown`"),
        ("compression_config", json!({"quant_method": "quark"}), "`compression_config`, method `quark`"),
        ("quantization", json!({"group_size": 64, "bits": 4}), "`quantization`, method `mlx`"),
        (
            "text_config",
            json!({"quantization_config": {"quant_method": "eetq"}}),
            "`text_config.quantization_config`, method `eetq`",
        ),
    ] {
        let said = read(&with(json!({ key: value }))).expect_err("an error");
        assert!(said.contains(&format!("the checkpoint is quantized ({named})")), "{said}");
    }
    expect!["`config.json` is not a JSON object: EOF while parsing a value at line 1 column 17"]
        .assert_eq(&read_text("{\"vocab_size\": 1,", &[]).unwrap_err());
    expect!["`config.json` is not a JSON object: found a list"].assert_eq(&read_text("[]", &[]).unwrap_err());
}

/// Tests of keys that contradict each other. The error contains the two keys and their values.
#[test]
fn m19_keys_that_contradict_each_other() {
    let mismatch = |changes: Value, expected: Expect| {
        let said = match read(&with(changes)) {
            Err(said) => said,
            Ok(config) => {
                let traced =
                    ModelConfig::Llama(config).trace(ElementType::F32, &dsl::EntryPoint::all(1, 2, 4));
                traced.expect_err("an error").kind.to_string()
            }
        };
        expected.assert_eq(&said);
    };
    mismatch(
        json!({"num_key_value_heads": 4}),
        expect![
            "`num_attention_heads` (6) is not a multiple of `num_key_value_heads` (4); correct one of these keys in the configuration"
        ],
    );
    mismatch(
        json!({"num_key_value_heads": 12}),
        expect![
            "`num_attention_heads` (6) is not a multiple of `num_key_value_heads` (12); correct one of these keys in the configuration"
        ],
    );
    mismatch(
        json!({"hidden_size": 25}),
        expect![
            "`hidden_size` (25) is not a multiple of `num_attention_heads` (6); correct one of these keys in the configuration"
        ],
    );
    mismatch(
        json!({"hidden_size": 4}),
        expect![
            "`hidden_size` (4) is not a multiple of `num_attention_heads` (6); correct one of these keys in the configuration"
        ],
    );
    mismatch(
        json!({"torch_dtype": "float16", "dtype": "bfloat16"}),
        expect![[r#"
        `config.json`: 1 problem(s)
          `torch_dtype` is f16, expected bf16, which `dtype` says"#]],
    );
    mismatch(
        json!({"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
        expect![[r#"
            `config.json`: 1 problem(s)
              `rope_theta` is 500000, expected 10000, which `rope_parameters.rope_theta` says"#]],
    );
}
