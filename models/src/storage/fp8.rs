//! FP8 as in published checkpoints of DeepSeek, Qwen3 and MiniMax (`FineGrainedFP8Config` in HF transformers).

use irpa::{FloatScale, FloatsLayout, JoinedLayout};
use serde_json::Value;

use super::Storage;
use crate::config::Keys;

/// Keys that do not change the numbers. The tensors show which modules are quantized, and the type of a scale.
const IGNORED: &[&str] =
    &["dequantize", "ignored_layers", "modules_to_convert", "modules_to_not_convert", "scale_fmt"];

pub(super) fn read(keys: &Keys) -> Storage {
    keys.ignore(IGNORED);
    keys.one_of("fmt", &["e4m3", "float8_e4m3fn"]);
    keys.one_of("expert_dtype", &["fp8"]);
    // Tracewright does not round activations to 8 bits, so their scales do not matter.
    keys.one_of("activation_scheme", &["dynamic", "static"]);
    Storage::all(JoinedLayout::Floats(FloatsLayout::Fp8(block(keys, "weight_block_size"))))
}

/// The rows and columns that share a scale.
pub(super) fn block(keys: &Keys, key: &'static str) -> Option<FloatScale> {
    let value = keys.get(key)?;
    let extents = value.as_array().map(|all| all.iter().filter_map(Value::as_u64).collect::<Vec<_>>());
    if let Some(&[rows, columns]) = extents.as_deref()
        && let (Ok(rows), Ok(columns)) = (usize::try_from(rows), usize::try_from(columns))
    {
        return Some(FloatScale::Block([rows, columns]));
    }
    keys.refuse(key, value, "two extents, such as [128, 128]");
    None
}
