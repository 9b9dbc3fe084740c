//! A checkpoint beside what transformers answered, from prepared files: a sound one passes, and of a damaged one the layer is
//! named.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use serde_json::{Value, json};
use tempfile::TempDir;
use tracewright::ops::ElementType;
use tracewright_tests::built::repository;
use tracewright_tests::golden::Golden;
use tracewright_tests::parity::{BOUND, CheckpointParity, Parting, compare};

/// Compares a model with the golden of a fixture. The outputs of transformers' modules are known for the
/// first two tokens.
fn beside(fixture: &str, model: &Path) -> CheckpointParity {
    let fixtures = repository().join("tests/fixtures");
    let golden = Golden::within(&fixtures.join(fixture), model).unwrap();
    let known = fixtures.join("activations").join(format!("{fixture}-start.safetensors"));
    let activations = |tokens: &[u32], element| {
        assert_eq!((tokens.len(), element), (2, ElementType::F32), "the shortest that shows it");
        Ok(known.clone())
    };
    let report = compare(&golden, &activations, &|_| ()).unwrap();
    println!("{report}");
    report
}

/// A copy of a model that may be damaged.
fn copied(fixture: &str) -> TempDir {
    let (from, to) = (repository().join("tests/fixtures").join(fixture), tempfile::tempdir().unwrap());
    for name in ["config.json", "model.safetensors"] {
        fs::copy(from.join(name), to.path().join(name)).unwrap();
    }
    to
}

#[test]
fn a_sound_checkpoint_passes_in_f32_and_in_its_own_type() {
    let model = repository().join("tests/fixtures/llama-tied");
    let report = beside("llama-tied", &model);
    assert!(report.passes && report.undecided.is_empty());
    assert_eq!((report.tokens.equal, report.tokens.of), (35, 35));
    assert!(report.logits.largest > 0.0 && report.logits.largest <= BOUND && report.gap > 0.0);
    let json = serde_json::to_value(&report).unwrap();
    let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
    let expected = [
        "passes",
        "model",
        "reference",
        "storage",
        "prompts",
        "tokenized",
        "tokens",
        "undecided",
        "logits",
        "gap",
        "narrow",
        "parting",
    ];
    assert_eq!(keys, expected);
    let narrow = &json["narrow"];
    assert_eq!((&narrow["type"], &narrow["passes"]), (&json!("f16"), &json!(true)));
    let figures = [&narrow["error_ratio"][0], &narrow["error_ratio"][1], &narrow["kl"][0]];
    assert!(figures.iter().all(|figure| figure.as_f64().unwrap() > 0.0), "{narrow}");
    assert!(narrow["kl_of_transformers"].as_f64() > narrow["kl"][0].as_f64());
    assert_eq!((&json["parting"], &json["tokenized"]), (&Value::Null, &Value::Null));
}

/// The layer that is named, and the operation, where the model is damaged in this way.
fn damaged(damage: impl Fn(&Path)) -> (String, String) {
    let model = copied("llama-untied");
    damage(model.path());
    let report = beside("llama-untied", model.path());
    assert!(!report.passes && report.logits.largest > BOUND);
    assert!(report.tokens.equal < report.tokens.of);
    let Some(Parting { layer: Some(layer), finding: Some(finding), .. }) = report.parting else {
        panic!("no layer is named");
    };
    (layer, finding.node.place.op)
}

/// Another value of a key of the configuration.
fn config(model: &Path, edit: impl Fn(&mut Value)) {
    let path = model.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(&mut config);
    fs::write(&path, serde_json::to_vec(&config).unwrap()).unwrap();
}

#[test]
fn another_epsilon_is_named_where_the_first_norm_is() {
    let (layer, op) = damaged(|model| config(model, |config| config["rms_norm_eps"] = json!(1e-2)));
    assert!(layer == "model.layers.0" && op.starts_with("rms_norm"), "{layer}: {op}");
}

#[test]
fn another_base_is_named_where_the_first_layer_attends() {
    let (layer, op) =
        damaged(|model| config(model, |config| config["rope_parameters"]["rope_theta"] = json!(100.0)));
    assert!(layer == "model.layers.0" && op.starts_with("sdpa"), "{layer}: {op}");
}

#[test]
fn a_damaged_weight_is_named_in_its_layer() {
    let (layer, op) = damaged(|model| {
        let path = model.join("model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        let at = {
            let tensors = SafeTensors::deserialize(&bytes).unwrap();
            let data = tensors.tensor("model.layers.1.mlp.down_proj.weight").unwrap().data();
            data.as_ptr().addr() - bytes.as_ptr().addr()
        };
        bytes[at..at + 4].copy_from_slice(&9f32.to_le_bytes());
        fs::write(&path, bytes).unwrap();
    });
    assert!(layer == "model.layers.1" && op.starts_with("linear"), "{layer}: {op}");
}

#[test]
fn a_key_that_nobody_reads_may_be_allowed() {
    let model = copied("llama-tied");
    let path = model.path().join("config.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    config["odd_key"] = json!(7);
    fs::write(&path, config.to_string()).unwrap();
    let fixture = repository().join("tests/fixtures/llama-tied");
    let golden = |keys: &[&str]| {
        let mut golden = Golden::within(&fixture, model.path()).unwrap();
        golden.allowed_keys = keys.iter().map(|key| key.to_string()).collect();
        golden
    };
    let nothing_parts = |_: &[u32], _| panic!("nothing parts");
    let refused = compare(&golden(&["even_key"]), &nothing_parts, &|_| ()).unwrap_err().to_string();
    assert!(refused.contains("`odd_key` is not a known key"), "{refused}");
    assert!(compare(&golden(&["odd_key"]), &nothing_parts, &|_| ()).unwrap().passes);
}
