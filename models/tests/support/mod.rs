//! What the tests of the models share.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ops::{ElementType, TensorType, Value};
use trace::Trace;
use tracewright_models::ModelConfig;

/// A configuration as published.
pub fn published(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs").join(name).with_added_extension("json")
}

/// What transformers gave.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
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
            other => panic!("`{name}` is {other:?}"),
        };
        let stored = Value::from_bytes(TensorType::new(element, view.shape()), view.data());
        (name, Value::new(stored.ty.with_element(ElementType::F32), stored.data))
    };
    file.tensors().into_iter().map(value).collect()
}

/// The parameters of a trace: key and type.
pub fn parameters(trace: &Trace) -> BTreeMap<String, TensorType> {
    trace.parameters().unwrap().into_iter().map(|p| (p.key, p.ty)).collect()
}
