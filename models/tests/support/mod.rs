//! Helper functions for the tests of this crate.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use dsl::{EntryInput, EntryPoint, ExpertsMode, LogitsMode};
use irpa::Checkpoint;
use ops::{ElementType, TensorType, Value};
use trace::{Evaluation, Parameter, Trace, evaluate};
use tracewright_models::{Architecture as _, ModelConfig};

/// The path of a published `config.json`.
pub fn published(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("presets").join(name).with_added_extension("json")
}

/// The folder of a fixture, which contains results of transformers.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

/// The names of all random language models with logits of transformers for few positions.
pub fn fixtures() -> Vec<String> {
    let folders = std::fs::read_dir(fixture("")).unwrap().map(|folder| folder.unwrap().path());
    let is_language_model = |folder: &PathBuf| {
        let context =
            |golden: &[u8]| serde_json::from_slice::<serde_json::Value>(golden).unwrap()["context"].as_u64();
        let golden = std::fs::read(folder.join("golden.json")).ok();
        let is_short = golden.and_then(|golden| context(&golden)).is_some_and(|context| context <= 40);
        is_short && ModelConfig::read(folder, &[]).is_ok()
    };
    let folders = folders.filter(is_language_model);
    let mut names: Vec<String> =
        folders.map(|folder| folder.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

pub fn config(path: &Path) -> ModelConfig {
    ModelConfig::read(path, &[]).unwrap_or_else(|error| panic!("{error}"))
}

/// The tensors of a safetensors file, as f32.
pub fn tensors(path: &Path) -> BTreeMap<String, Value> {
    let bytes = std::fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let value = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        let element = match view.dtype() {
            safetensors::Dtype::F32 => ElementType::F32,
            safetensors::Dtype::F16 => ElementType::F16,
            safetensors::Dtype::BF16 => ElementType::Bf16,
            safetensors::Dtype::I32 => ElementType::I32,
            other => panic!("`{name}` is {other:?}"),
        };
        let stored = Value::from_bytes(TensorType::new(element, view.shape()), view.data());
        (name, Value::new(stored.ty.with_element(ElementType::F32), stored.data))
    };
    file.tensors().into_iter().map(value).collect()
}

/// The key and the type of each parameter of a trace.
pub fn parameters(trace: &Trace) -> BTreeMap<String, TensorType> {
    trace.parameters().unwrap().into_iter().map(|p| (p.key, p.ty)).collect()
}

/// Checks that the evaluator computes the same logits as transformers at every position of the
/// fixture's first prompt.
pub fn judged_by_transformers(folder: &Path) {
    let name = folder.file_name().unwrap().to_str().unwrap();
    let config = config(folder);
    let checkpoint = config.naming().apply(Checkpoint::open(folder).unwrap());
    let golden = std::fs::read(folder.join("golden.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_slice(&golden).unwrap();
    let expected = &tensors(&folder.join("golden.safetensors"))["prompts.0.logits"];

    let token = |value: &serde_json::Value| value.as_f64().unwrap();
    let list = |key: &str| golden["prompts"][0][key].as_array().unwrap().iter().map(token);
    let mut tokens: Vec<f64> = list("prompt_tokens").chain(list("tokens")).collect();
    tokens.truncate(expected.ty.shape[0]);
    let length = tokens.len();
    let score = EntryPoint {
        name: "score".into(),
        batch: 1,
        chunk: length,
        context: length + 3,
        input: EntryInput::Tokens,
        logits: LogitsMode::All,
        hidden: false,
        kv: trace::KvFormat::Computed,
        experts: ExpertsMode::Auto,
    };
    let trace = config.trace(ElementType::F32, &[score]).unwrap().trace;
    // The inlined trace and the trace with layers as functions compute the same logits.
    for trace in [trace.inlined(), trace] {
        let inputs = trace.entry("score").unwrap().inputs();
        let argument = |(name, ty): (&str, &TensorType)| match name {
            "tokens" => Value::new(ty.clone(), tokens.iter().copied()),
            "count" => Value::new(ty.clone(), [length as f64]),
            // The entry point has this argument if longer sequences have another rotary embedding.
            name if name.starts_with("above_") => {
                let original: usize = name["above_".len()..].parse().unwrap();
                Value::from_fn(ty.clone(), |_| f64::from(length > original))
            }
            _ => Value::from_fn(ty.clone(), |_| 0.0),
        };
        let arguments = inputs.into_iter().map(argument).collect();
        let declared = trace.parameters().unwrap();
        let types: BTreeMap<&str, &TensorType> = declared.iter().flat_map(Parameter::sources).collect();
        let parameters = |key: &str| bake::value(&checkpoint, key, types.get(key)?);
        let evaluation = Evaluation { parameters: &parameters, watch: None };
        let logits = evaluate(&trace, "score", arguments, evaluation).unwrap().swap_remove(0);
        let columns = expected.ty.shape[1];
        let rows = logits.data.chunks(columns).zip(expected.data.chunks(columns));
        let worst = rows.enumerate().map(|(position, (found, wanted))| {
            let off = found.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            (off / wanted.iter().fold(0.0, |m: f64, x| m.max(x.abs())), position)
        });
        let (off, position) = worst.fold((0.0, 0), |a, b| if b.0 > a.0 { b } else { a });
        println!("{name}: position {position} is worst, {off:.1e} of its largest logit");
        assert!(off <= 1e-5, "{name}: position {position} is off by {off} of its largest logit");
    }
}
