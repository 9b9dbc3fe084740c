//! Networks whose layers alternate between attention and a recurrence.

use std::ops::DerefMut;

use serde_json::Value;

use crate::config::Keys;
use crate::decoder::{LlamaConfig, read_text_tower};

/// `attends` and `recurs` by the field `attention`: the kind of state of a layer.
macro_rules! alternates {
    ($config:ident) => {
        impl $config {
            /// Whether a layer has attention.
            pub fn attends(&self, layer: usize) -> bool {
                self.attention.get(layer).copied().unwrap_or_default()
            }

            /// Whether a layer is recurrent, which means that the layer has no attention.
            pub fn recurs(&self, layer: usize) -> bool {
                !self.attends(layer)
            }
        }
    };
}

pub(crate) use alternates;

/// Names in a `config.json`, that of published files first.
pub(crate) type KindNames<K> = &'static [(K, &'static [&'static str])];

/// By `layer_types`; `None` if it is missing.
pub(crate) fn kinds<K: Copy>(keys: &Keys, layers: usize, names: KindNames<K>) -> Option<Vec<K>> {
    let value = keys.get("layer_types")?;
    let kinds = value.as_array().and_then(|list| named(list, names)).filter(|kinds| kinds.len() == layers);
    if kinds.is_none() {
        let published: Vec<&str> = names.iter().map(|(_, names)| names[0]).collect();
        keys.refuse("layer_types", value, format!("a list of {layers} of `{}`", published.join("` and `")));
    }
    kinds
}

/// `None` if a name is unknown.
pub(crate) fn named<K: Copy>(list: &[Value], names: KindNames<K>) -> Option<Vec<K>> {
    let kind = |name: &Value| {
        let found = names.iter().find(|(_, known)| known.iter().any(|known| name == known));
        found.map(|(kind, _)| *kind)
    };
    list.iter().map(kind).collect()
}

/// Earlier positions that a causal convolution reads, from its taps in `key`.
pub(crate) fn conv_memory(keys: &Keys, key: &'static str, default: usize) -> usize {
    let taps = keys.optional_count(key).unwrap_or(default);
    if taps < 2 {
        keys.refuse(key, taps, "at least 2");
    }
    taps.saturating_sub(1)
}

/// From the top level or from `text_config`.
pub(crate) fn read_qwen<C: DerefMut<Target = LlamaConfig>>(keys: &Keys, read: impl FnOnce(&Keys) -> C) -> C {
    let beside = &[
        "image_token_id",
        "language_model_only",
        "video_token_id",
        "vision_config",
        "vision_end_token_id",
        "vision_start_token_id",
    ];
    read_text_tower(keys, false, beside, read)
}
