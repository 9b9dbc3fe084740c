//! Detects weights that other tools have quantized.

use serde_json::{Map, Value};

use super::{ConfigError, Keys};

/// Keys that declare a quantization, and the method if the key implies it: from HF transformers, early
/// compressed-tensors, and MLX.
pub(super) const QUANTIZATION: [(&str, Option<&str>); 3] = [
    ("quantization_config", None),
    ("compression_config", Some("compressed-tensors")),
    ("quantization", Some("mlx")),
];

/// Rejects weights in a quantization that is not in `read`, also of the text tower.
pub(crate) fn check_storage(keys: &Keys, read: &[&str]) -> Result<(), ConfigError> {
    match storage(keys).filter(|(_, method)| !read.contains(&method.as_str())) {
        Some((key, method)) => Err(ConfigError::Quantized { path: keys.path.clone(), key, method }),
        None => Ok(()),
    }
}

/// Key and quantization method.
fn storage(keys: &Keys) -> Option<(String, String)> {
    let text = keys.map.get("text_config").and_then(Value::as_object);
    let towers = [Some(("", &keys.map)), text.map(|text| ("text_config.", text))];
    towers.into_iter().flatten().find_map(|(prefix, map)| packed(prefix, map))
}

pub(crate) fn is_mxfp4(keys: &Keys) -> bool {
    storage(keys).is_some_and(|(_, method)| method == "mxfp4")
}

fn packed(prefix: &str, map: &Map<String, Value>) -> Option<(String, String)> {
    QUANTIZATION.iter().find_map(|(key, usual)| {
        let value = map.get(*key).filter(|value| !value.is_null())?;
        let method = value.get("quant_method").and_then(Value::as_str).or(*usual).unwrap_or("unknown");
        Some((format!("{prefix}{key}"), method.to_owned()))
    })
}
