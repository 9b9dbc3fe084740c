//! Finds the description of weights that other tools have quantized.

use serde_json::{Map, Value};

use super::{ConfigError, Keys};
use crate::storage::{METHODS, Storage};

/// Keys that declare a quantization, and the method if the key implies it: from HF transformers, early
/// compressed-tensors, and MLX.
pub(super) const QUANTIZATION: [(&str, Option<&str>); 3] = [
    ("quantization_config", None),
    ("compression_config", Some("compressed-tensors")),
    ("quantization", Some("mlx")),
];

/// How the checkpoint's weights are stored, also those of the text tower. The family itself reads weights that
/// are quantized by a method in `own`. All keys of the description must be known, or in `allowed`.
pub(crate) fn read_storage(keys: &Keys, own: &[&str], allowed: &[String]) -> Result<Storage, ConfigError> {
    let Some((key, method, map)) = described(keys).filter(|(_, method, _)| !own.contains(&method.as_str()))
    else {
        return Ok(Storage::default());
    };
    let read = METHODS.iter().find(|(name, _)| *name == method).map(|(_, read)| read);
    let (Some(read), Value::Object(map)) = (read, map) else {
        let expected = METHODS.iter().map(|(name, _)| *name).collect();
        return Err(ConfigError::Quantized { path: keys.path.clone(), key, method, expected });
    };
    let nested = Keys::new(&keys.path, &format!("{key}."), map.clone());
    let storage = read(&nested);
    nested.finish(&["quant_method"], allowed)?;
    Ok(storage)
}

/// Key, method and value.
fn described(keys: &Keys) -> Option<(String, String, &Value)> {
    let text = keys.map.get("text_config").and_then(Value::as_object);
    let towers = [Some(("", &keys.map)), text.map(|text| ("text_config.", text))];
    towers.into_iter().flatten().find_map(|(prefix, map)| described_in(prefix, map))
}

pub(crate) fn is_mxfp4(keys: &Keys) -> bool {
    described(keys).is_some_and(|(_, method, _)| method == "mxfp4")
}

fn described_in<'a>(prefix: &str, map: &'a Map<String, Value>) -> Option<(String, String, &'a Value)> {
    QUANTIZATION.iter().find_map(|(key, usual)| {
        let value = map.get(*key).filter(|value| !value.is_null())?;
        let method = value.get("quant_method").and_then(Value::as_str).or(*usual).unwrap_or("unknown");
        Some((format!("{prefix}{key}"), method.to_owned(), value))
    })
}
