//! Tests of keys that any `config.json` can contain in addition to the keys of its family. These
//! are the keys of transformers' base class and the class name of a model without an output head.
//! Other tests check Python's notation of numbers, and the order of errors.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::support;

use std::fs;

use serde_json::{Map, Value, json};
use support::*;
use tracewright_models::{FAMILIES, ModelConfig};

/// The name of a fixture for each architecture, and the class name of the model without an output
/// head.
fn families() -> Vec<(String, &'static str)> {
    let named = |name: &String| keys(name)["architectures"][0].as_str().unwrap().to_owned();
    let fixtures: Vec<(String, String)> = fixtures().into_iter().map(|name| (named(&name), name)).collect();
    let classes = FAMILIES.iter().flat_map(|family| family.architectures.iter().zip(family.bases));
    let fixture = |(architecture, base): (&&'static str, &&'static str)| {
        let found = fixtures.iter().find(|(named, _)| named == architecture);
        (found.unwrap_or_else(|| panic!("no fixture of {architecture}")).1.clone(), *base)
    };
    classes.map(fixture).collect()
}

fn keys(fixture_name: &str) -> Map<String, Value> {
    serde_json::from_slice(&fs::read(fixture(fixture_name).join("config.json")).unwrap()).unwrap()
}

fn read_text(text: &str) -> Result<ModelConfig, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    fs::write(&path, text).unwrap();
    let shown = |error: String| error.replace(path.to_str().unwrap(), "config.json");
    ModelConfig::read(folder.path(), &[]).map_err(|error| shown(error.to_string()))
}

fn read(keys: &Map<String, Value>) -> Result<ModelConfig, String> {
    read_text(&Value::Object(keys.clone()).to_string())
}

/// transformers' `config.to_dict()` writes all keys of the base class in addition to the keys of
/// the family.
#[test]
fn the_keys_of_the_base_class_change_nothing() {
    let text = include_str!("../base_keys.json");
    let versions: Map<String, Value> = serde_json::from_str(text).unwrap();
    assert!(versions.len() > 1);
    for (version, base) in &versions {
        for (name, _) in &families() {
            let plain = keys(name);
            let mut full = plain.clone();
            // Each family has its own default of `tie_word_embeddings`.
            let base = base.as_object().unwrap().iter().filter(|(key, _)| *key != "tie_word_embeddings");
            for (key, value) in base {
                full.entry(key).or_insert_with(|| value.clone());
                if let Some(text) = full.get_mut("text_config") {
                    text.as_object_mut().unwrap().entry(key).or_insert_with(|| value.clone());
                }
            }
            assert!(full.len() > plain.len() + 5, "{name}: {version}");
            assert_eq!(read(&full), read(&plain), "{name}: {version}");
            read(&full).unwrap();
        }
    }
}

/// Some values of the base class's keys change the network or the prompt.
#[test]
fn the_keys_of_the_base_class_are_refused_where_they_change_something() {
    for (key, fine, wrong, shown) in [
        ("add_cross_attention", json!(false), json!(true), "true"),
        ("is_encoder_decoder", json!(false), json!(true), "true"),
        ("tie_encoder_decoder", json!(false), json!(true), "true"),
        ("cross_attention_hidden_size", json!(null), json!(60), "60"),
        ("pruned_heads", json!({}), json!({"1": [0, 2]}), r#"{"1":[0,2]}"#),
        ("prefix", json!(""), json!("Once"), "\"Once\""),
        ("per_layer_config", json!({}), json!({"1": {"head_dim": 8}}), r#"{"1":{"head_dim":8}}"#),
        // None of these values changes the network or the prompt.
        ("is_decoder", json!(true), json!(null), ""),
        ("repetition_penalty", json!(1.3), json!(null), ""),
        ("chunk_size_feed_forward", json!(64), json!(null), ""),
        ("id2label", json!({"0": "good", "1": "bad"}), json!(null), ""),
    ] {
        let mut config = keys("llama-untied");
        config.insert(key.into(), fine);
        read(&config).unwrap();
        config.insert(key.into(), wrong);
        match shown {
            "" => drop(read(&config).unwrap()),
            _ => {
                let said = read(&config).expect_err(key);
                let expected = format!("`config.json`: 1 problem(s)\n  `{key}` is {shown}, expected ");
                assert!(said.starts_with(&expected), "{said}");
            }
        }
    }
}

/// `LlamaModel(…).save_pretrained()` writes the class name `LlamaModel`, and transformers loads the
/// file as a `LlamaForCausalLM`.
#[test]
fn a_model_without_its_head_is_of_the_same_family() {
    for (name, base) in families() {
        let mut config = keys(&name);
        let whole = read(&config).unwrap();
        config.insert("architectures".into(), json!([base]));
        assert_eq!(read(&config), Ok(whole), "{name}");
    }
    // A Gemma 3 with bidirectional attention computes embeddings, and needs files next to its
    // configuration.
    let mut config = keys("gemma3-a");
    config.insert("architectures".into(), json!(["Gemma3TextModel"]));
    config.insert("use_bidirectional_attention".into(), json!(true));
    let said = read(&config).expect_err("an embedding");
    assert!(said.contains("modules.json"), "{said}");
}

/// If the architecture is unknown, Tracewright reports no other problem, because the user needs
/// another model.
#[test]
fn an_unknown_architecture_comes_first() {
    for (key, value) in [
        ("quantization_config", json!({"quant_method": "mxfp4"})),
        ("quantization_config", json!({"bits": 4})),
        ("quantization_config", json!("fp8")),
        ("compression_config", json!({"format": "pack-quantized"})),
        ("quantization", json!({"group_size": 64, "bits": 4})),
        ("text_config", json!({"quantization_config": {"quant_method": "awq"}})),
        ("text_config", json!({"model_type": "llama"})),
        ("auto_map", json!({"AutoModelForCausalLM": "modeling.Foo"})),
        ("num_hidden_layers", json!(-1)),
        ("use_bidirectional_attention", json!("both")),
        ("architectures", json!(["DeepseekV4ForCausalLM", "LlamaForCausalLM"])),
        ("trust_remote_code", json!(true)),
    ] {
        for minimal in [true, false] {
            let mut config = if minimal { Map::new() } else { keys("llama-untied") };
            config.insert("model_type".into(), json!("deepseek_v4"));
            config.insert("architectures".into(), json!(["DeepseekV4ForCausalLM"]));
            config.insert(key.into(), value.clone());
            let said = read(&config).expect_err(key);
            assert!(
                said.starts_with("`config.json`: the architecture `DeepseekV4ForCausalLM` is not supported"),
                "{said}"
            );
        }
    }
}

/// Python's JSON has words such as `Infinity` for numbers that are not finite, and transformers 5
/// writes an object.
#[test]
fn numbers_that_are_not_finite() {
    let plain = Value::Object(keys("llama-untied")).to_string();
    let with = |entry: &str| plain.replacen('{', &format!("{{{entry},"), 1);
    for fine in [
        r#""id2label": {"0": Infinity}"#,
        r#""temperature": -Infinity, "top_p": NaN"#,
        r#""problem_type": {"__float__": "Infinity"}"#,
        r#""_name_or_path": "NaN to Infinity""#,
    ] {
        assert_eq!(read_text(&with(fine)), read_text(&plain), "{fine}");
    }
    let mamba = r#"{"architectures": ["Mamba2ForCausalLM"], "time_step_limit": [0.0, Infinity]}"#;
    let said = read_text(mamba).expect_err("unknown");
    assert!(said.contains("architecture `Mamba2ForCausalLM` is not supported"), "{said}");
    for (key, value, shown) in [
        ("rms_norm_eps", "Infinity", "Infinity"),
        ("rms_norm_eps", r#"{"__float__": "NaN"}"#, "NaN"),
        ("vocab_size", "NaN", "NaN"),
        ("hidden_act", "NaN", "NaN"),
        ("num_key_value_heads", "[-Infinity, 1]", "[-Infinity,1]"),
        ("head_dim", "-Infinity", "-Infinity"),
    ] {
        let mut keys = keys("llama-untied");
        keys.remove(key).unwrap();
        let text = Value::Object(keys).to_string();
        let said = read_text(&text.replacen('{', &format!("{{\"{key}\": {value},"), 1)).expect_err(key);
        let expected = format!("`config.json`: 1 problem(s)\n  `{key}` is {shown}, expected ");
        assert!(said.starts_with(&expected), "{said}");
    }
    let said = read_text("{\"a\": [0.0, Infinity], \"b\" 1}").expect_err("no JSON");
    assert_eq!(said, "`config.json` is not a JSON object: expected `:` at line 1 column 28");
}

/// Transformers ignores `rope_theta` of an Apertus without `rope_scaling`.
#[test]
fn a_base_that_transformers_ignores_is_refused() {
    for (theta, scaling, is_read) in [
        (12e6, json!(null), true),
        (5e5, json!(null), false),
        (5e5, json!({"rope_type": "linear", "factor": 2.0}), true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let keys = json!({
            "architectures": ["ApertusForCausalLM"], "vocab_size": 11, "hidden_size": 24, "intermediate_size": 10,
            "num_hidden_layers": 1, "num_attention_heads": 2, "rope_theta": theta, "rope_scaling": scaling,
        });
        fs::write(folder.path().join("config.json"), keys.to_string()).unwrap();
        match ModelConfig::read(folder.path(), &[]) {
            Ok(_) => assert!(is_read, "{theta}"),
            Err(error) => {
                let error = error.to_string();
                assert!(!is_read && error.contains("`rope_theta` is 500000, expected 12000000"), "{error}");
            }
        }
    }
}
