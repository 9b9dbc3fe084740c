//! The formats of the library compressed-tensors, which llm-compressor writes.

use irpa::{CodeOrder, FloatScale, FloatsLayout, IntegersLayout, JoinedLayout};
use serde_json::Value;

use super::fp8::block;
use super::{QuantizedModules, Storage, Stored, pattern_of};
use crate::config::Keys;

/// Keys that do not change the numbers. The tensors show which modules are quantized.
const IGNORED: &[&str] = &["global_compression_ratio", "ignore", "version"];
const IGNORED_OF_WEIGHTS: &[&str] = &["observer", "observer_kwargs", "scale_dtype", "zp_dtype"];

pub(super) fn read(keys: &Keys) -> Storage {
    keys.ignore(IGNORED);
    keys.one_of("quantization_status", &["compressed", "frozen"]);
    for (key, expected) in [
        ("kv_cache_scheme", "null: the type of the KV cache is a setting of Tracewright"),
        ("moe_sparsity_config", "null: all experts have the same numbers"),
        ("sparsity_config", "null or {}: the weights are dense"),
        ("transform_config", "null or {}: the inputs of matmuls are not transformed"),
    ] {
        let empty = |value: &&Value| value.as_object().is_none_or(|map| !map.is_empty());
        if let Some(found) = keys.get(key).filter(empty) {
            keys.refuse(key, found, expected);
        }
    }
    let format = keys.optional_text("format");
    let Some(groups) = keys.get("config_groups").and_then(Value::as_object) else {
        keys.refuse("config_groups", "missing", "an object");
        return Storage::default();
    };
    let groups = groups.iter().map(|(name, group)| (format!("config_groups.{name}"), group));
    Storage(groups.filter_map(|(name, group)| stored(keys, &name, group, format.as_deref())).collect())
}

/// A group of modules, whose own format comes before the folder's.
fn stored(keys: &Keys, name: &str, group: &Value, format: Option<&str>) -> Option<Stored> {
    let group = keys.nested(name, group)?;
    let own = group.optional_text("format");
    let targets = targets(&group);
    group.ignore(&["input_activations"]);
    if let Some(found) = group.get("output_activations") {
        group.refuse("output_activations", found, "null: the results of matmuls are not rounded");
    }
    let layout = group.object("weights").and_then(|weights| {
        weights.ignore(IGNORED_OF_WEIGHTS);
        let layout = layout(&weights, own.as_deref().or(format));
        group.close(weights);
        layout
    });
    keys.close(group);
    Some(Stored { targets, layout: layout? })
}

/// `Linear` is the class of all quantized modules.
fn targets(group: &Keys) -> Vec<QuantizedModules> {
    let names = group.get("targets").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let target = |name: &str| match name.strip_prefix("re:") {
        _ if name == "Linear" => QuantizedModules::All,
        None => QuantizedModules::Named(name.to_owned()),
        Some(pattern) => {
            if pattern_of(pattern).is_none() {
                group.refuse("targets", pattern, "a regular expression");
            }
            QuantizedModules::Pattern(pattern.to_owned())
        }
    };
    names.iter().filter_map(Value::as_str).map(target).collect()
}

fn layout(weights: &Keys, format: Option<&str>) -> Option<JoinedLayout> {
    match format {
        Some("pack-quantized") => integers(weights, CodeOrder::Rows),
        Some("int-quantized") => integers(weights, CodeOrder::Bytes),
        Some("float-quantized") => floats(weights),
        found => {
            let expected = "pack-quantized, int-quantized or float-quantized";
            weights.refuse("format", found.unwrap_or("missing"), expected);
            None
        }
    }
}

fn integers(weights: &Keys, packing: CodeOrder) -> Option<JoinedLayout> {
    weights.one_of("type", &["int"]);
    weights.always("dynamic", false);
    let bits = weights.count("num_bits");
    if !(2..=8).contains(&bits) {
        weights.refuse("num_bits", bits, "2 to 8");
    }
    let strategy = weights.optional_text("strategy");
    let strategies =
        if packing == CodeOrder::Bytes { &["tensor", "channel", "group"][..] } else { &["channel", "group"] };
    weights.one_of("strategy", strategies);
    weights.ignore(&["block_structure", "actorder"]);
    let group = match strategy.as_deref() {
        Some("group") => Some(weights.count("group_size")),
        _ => {
            weights.ignore(&["group_size"]);
            None
        }
    };
    let zeros = !weights.flag("symmetric", true);
    Some(JoinedLayout::Integers(IntegersLayout { packing, bits: bits.clamp(2, 8), group, zeros }))
}

fn floats(weights: &Keys) -> Option<JoinedLayout> {
    weights.one_of("type", &["float"]);
    weights.always("dynamic", false);
    weights.always("symmetric", true);
    let bits = weights.count("num_bits");
    if bits != 8 {
        weights.refuse("num_bits", bits, "8");
    }
    weights.ignore(&["actorder", "block_structure", "group_size"]);
    weights.one_of("strategy", &["block", "channel", "tensor"]);
    let scale = match weights.optional_text("strategy").as_deref() {
        Some("block") if weights.get("block_structure").is_none() => {
            weights.refuse("block_structure", "missing", "two extents, such as [128, 128]");
            return None;
        }
        Some("block") => block(weights, "block_structure")?,
        Some("channel") => FloatScale::Row,
        _ => FloatScale::Tensor,
    };
    Some(JoinedLayout::Floats(FloatsLayout::FloatQuantized(scale)))
}
