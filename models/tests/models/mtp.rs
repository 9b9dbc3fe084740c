//! The module for multi-token prediction of a Qwen3.5 gives the logits of the module that
//! `tests/oracle/mtp.py` composes from transformers' layers.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use std::collections::BTreeMap;
use std::fs;

use dsl::{EntryInput, EntryPoint, LogitsMode};
use irpa::Checkpoint;
use ops::{ElementType, TensorType, Value};
use serde_json::{Value as Json, json};
use support::{config, fixture, tensors};
use trace::{Evaluation, Parameter, evaluate};
use tracewright_models::{Architecture as _, ModelConfig, MtpError, check_mtp};

/// Checks that each row differs from transformers' row by at most 1e-5 of the row's largest number.
fn close(what: &str, found: &Value, expected: &Value) {
    let columns = expected.ty.shape.last().copied().unwrap();
    assert_eq!(found.data.len(), expected.data.len(), "{what}");
    for (row, (found, wanted)) in found.data.chunks(columns).zip(expected.data.chunks(columns)).enumerate() {
        let off = found.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        let off = off / wanted.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
        assert!(off <= 1e-5, "{what}: row {row} is off by {off} of its largest number");
    }
}

#[test]
fn hidden_states_and_the_logits_of_the_module_are_those_of_transformers() {
    let folder = fixture("mtp");
    let config = config(&folder);
    let checkpoint = config.naming().apply(Checkpoint::open(&folder).unwrap());
    check_mtp(&config, &checkpoint).unwrap();
    let golden = tensors(&folder.join("mtp.safetensors"));
    let text = &golden["text"].data;
    let entry = |name: &str, length: usize| {
        EntryPoint::new(name, 1, length, text.len() + 3, LogitsMode::All).with_hidden()
    };
    let draft = EntryPoint { input: EntryInput::Draft, ..entry("draft", text.len() - 1) };
    let trace = config.trace(ElementType::F32, &[entry("score", text.len()), draft]).unwrap().trace;
    let declared = trace.parameters().unwrap();
    let types: BTreeMap<&str, &TensorType> = declared.iter().flat_map(Parameter::sources).collect();
    let parameters = |key: &str| bake::value(&checkpoint, key, types.get(key)?);
    let results = |name: &str, tokens: &[f64]| {
        let argument = |(argument, ty): (&str, &TensorType)| match argument {
            "tokens" => Value::new(ty.clone(), tokens.iter().copied()),
            "features" => Value::new(ty.clone(), golden["hidden"].data.iter().copied().take(ty.count())),
            "count" => Value::new(ty.clone(), [tokens.len() as f64]),
            _ => Value::from_fn(ty.clone(), |_| 0.0),
        };
        let arguments = trace.entry(name).unwrap().inputs().into_iter().map(argument).collect();
        evaluate(&trace, name, arguments, Evaluation { parameters: &parameters, watch: None }).unwrap()
    };
    close("hidden", &results("score", text)[1], &golden["hidden"]);
    let found = results("draft", &text[1..]);
    close("MTP logits", &found[0], &golden["mtp_logits"]);
    close("MTP hidden", &found[1], &golden["mtp_hidden"]);
}

#[test]
fn only_the_draft_entry_points_take_the_state_of_the_module() {
    let config = config(&fixture("mtp"));
    let entries = [EntryPoint::all(1, 4, 8), EntryPoint::drafts(4, 2, 8)].concat();
    let trace = config.trace(ElementType::F32, &entries).unwrap().trace;
    let layers = |name: &str| {
        let signature = trace.entry(name).unwrap().signature();
        let layer = |argument: &trace::Argument| match argument.role {
            trace::Role::State { layer, .. } => Some(layer),
            _ => None,
        };
        let mut layers: Vec<usize> = signature.arguments.iter().filter_map(layer).collect();
        layers.dedup();
        layers
    };
    assert_eq!(layers("decode"), [0, 1, 2, 3]);
    assert_eq!(layers("draft_1"), [4]);
}

#[test]
fn models_without_a_supported_module_are_refused_by_name() {
    let folder = fixture("mtp");
    let own = config(&folder);
    let checkpoint = own.naming().apply(Checkpoint::open(&folder).unwrap());
    let changed = |key: &str, value: Json| {
        let scratch = tempfile::tempdir().unwrap();
        let mut keys: Json = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
        keys[key] = value;
        fs::write(scratch.path().join("config.json"), keys.to_string()).unwrap();
        check_mtp(&ModelConfig::read(scratch.path(), &[]).unwrap(), &checkpoint).unwrap_err()
    };
    assert_eq!(changed("mtp_num_hidden_layers", json!(0)), MtpError::Layers { layers: 0 });
    assert_eq!(changed("mtp_num_hidden_layers", json!(2)), MtpError::Layers { layers: 2 });
    assert_eq!(changed("mtp_use_dedicated_embeddings", json!(true)), MtpError::DedicatedEmbeddings);
    let other = config(&fixture("qwen3"));
    assert_eq!(check_mtp(&other, &checkpoint), Err(MtpError::Family));
    let without = own.naming().apply(Checkpoint::open(fixture("qwen3_5")).unwrap());
    assert_eq!(check_mtp(&own, &without), Err(MtpError::Weights));
}
