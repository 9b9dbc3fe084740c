//! The configuration of a Gemma 4 network.

use dsl::Project;
use files::limits;
use serde_json::Value;

use crate::config::Keys;
use crate::decoder::{Defaults, LlamaConfig, read_text_tower};
use crate::experts;
use crate::rope::{RopeParameters, RopeScaling};
use crate::shape_check::DeclaredSize;

/// Llama's keys describe layers with a window.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "most fields are keys")]
pub struct PerLayerConfig {
    pub llama: LlamaConfig,
    /// The number of features of a head in layers without an attention window.
    pub global_head_dim: usize,
    /// The number of key-value heads in layers without an attention window.
    pub global_key_value_heads: usize,
    pub attention_k_eq_v: bool,
    /// From this layer on, keys and values are those of an earlier one.
    pub first_shared: usize,
    pub use_double_wide_mlp: bool,
    /// Whether each layer has an additional embedding table for the tokens.
    pub has_per_layer: bool,
    /// At least 1, even without per-layer embeddings.
    pub per_layer_features: usize,
    pub vocab_size_per_layer_input: usize,
    pub has_experts: bool,
    /// The number of experts. The value is at least 1, even if the network has no experts.
    pub num_experts: usize,
    pub top_k_experts: usize,
    pub moe_intermediate_size: usize,
    pub final_logit_softcapping: Option<f64>,
}

descends!(PerLayerConfig from llama: LlamaConfig);

impl PerLayerConfig {
    /// The index of the layer whose keys and values the layer `layer` reads.
    pub fn source(&self, layer: usize) -> usize {
        let is_alike = |&other: &usize| self.window(other).is_some() == self.window(layer).is_some();
        if layer < self.first_shared {
            layer
        } else {
            (0..self.first_shared).rev().find(is_alike).unwrap_or(layer)
        }
    }

    /// Whether a layer caches only the keys and values of its attention window.
    pub fn caches_window(&self, layer: usize) -> bool {
        layer < self.first_shared && self.window(layer).is_some()
    }

    /// Whether a layer caches the keys and values of all positions.
    pub fn caches_all(&self, layer: usize) -> bool {
        layer < self.first_shared && self.window(layer).is_none()
    }

    /// Returns the configured sizes that Tracewright compares with the tensor shapes in the checkpoint.
    pub fn sizes(&self) -> Vec<DeclaredSize> {
        let mut sizes = self.llama.sizes();
        sizes.retain(|size| !size.key.contains("head_dim"));
        // The tensor shapes of the first layer of each kind contain the head sizes of this kind.
        let first: LayerConfig = self.project_at(0);
        let features = first.num_attention_heads.saturating_mul(first.head_dim.unwrap_or(1));
        let key = format!(
            "num_attention_heads × {}",
            if self.window(0).is_some() { "head_dim" } else { "global_head_dim" }
        );
        sizes.push(DeclaredSize::extent(&key, features, &[("model.layers.*.self_attn.o_proj.weight", 1)]));
        if self.has_per_layer {
            let gates = &[("model.layers.*.per_layer_input_gate.weight", 0)];
            sizes.push(DeclaredSize::extent("hidden_size_per_layer_input", self.per_layer_features, gates));
        }
        if self.has_experts {
            let routers = &[("model.layers.*.router.proj.weight", 0)];
            sizes.push(DeclaredSize::extent("num_experts", self.num_experts, routers));
        }
        sizes
    }

    /// Key and value matrices and norms that published checkpoints have, but layers with earlier keys and
    /// values ignore.
    pub fn unread(&self) -> Vec<String> {
        let parts = ["k_proj", "v_proj", "k_norm", "v_norm"];
        let shared = self.first_shared..self.num_hidden_layers;
        let keys = |layer| parts.map(|part| format!("model.layers.{layer}.self_attn.{part}.weight"));
        shared.flat_map(keys).collect()
    }
}

/// The configuration of one layer of a Gemma 4 network.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerConfig {
    /// The configuration of the network, but with the head sizes of the layer.
    pub network: PerLayerConfig,
    /// Whether attention computes the keys and the values from the output of one linear layer.
    pub keys_are_values: bool,
}

descends!(LayerConfig from network: PerLayerConfig, through network.llama: LlamaConfig);

impl Project<LayerConfig> for PerLayerConfig {
    fn project(&self) -> LayerConfig {
        LayerConfig { network: self.clone(), keys_are_values: false }
    }

    fn project_at(&self, layer: usize) -> LayerConfig {
        let mut one: LayerConfig = self.project();
        if self.window(layer).is_none() {
            one.head_dim = Some(self.global_head_dim);
            one.num_key_value_heads = self.global_key_value_heads;
            one.keys_are_values = self.attention_k_eq_v;
        }
        if self.use_double_wide_mlp && layer >= self.first_shared {
            one.intermediate_size *= 2;
        }
        one
    }
}

/// Configuration keys outside of `text_config` that describe the vision and audio towers and their tokens.
const IGNORED_BESIDE_TEXT: &[&str] = key_names![
    audio_config audio_token_id boa_token_id boi_token_id eoa_token_id eoa_token_index eoi_token_id
    image_token_id video_token_id vision_config vision_soft_tokens_per_image
];

/// The defaults of keys that differ between the families with the network of Gemma 4.
pub(crate) struct OwnDefaults {
    pub max_position_embeddings: usize,
    pub sliding_window: usize,
    pub hidden_size_per_layer_input: usize,
}

pub(crate) fn read(keys: &Keys, own: &OwnDefaults) -> PerLayerConfig {
    read_text_tower(keys, true, IGNORED_BESIDE_TEXT, |keys| read_text(keys, own))
}

fn read_text(keys: &Keys, own: &OwnDefaults) -> PerLayerConfig {
    keys.one_of("hidden_activation", &["gelu_pytorch_tanh"]);
    // With this setting, image tokens attend to earlier and later image tokens. The setting does
    // not affect text.
    keys.one_of("use_bidirectional_attention", &["vision"]);
    let defaults = Defaults {
        hidden_act: &[],
        sizes: Some([262_144, 2304, 9216, 30, 8]),
        num_key_value_heads: Some(4),
        head_dim: Some(256),
        tie_word_embeddings: true,
        ..Defaults::new(own.max_position_embeddings)
    };
    let mut global = RopeParameters {
        scaling: RopeScaling::Proportional { proportion: 0.25, factor: 1.0 },
        ..RopeParameters::plain(1e6)
    };
    let llama = LlamaConfig::with_rope(keys, defaults, |keys, defaults| {
        let both = RopeParameters::by_layer_type(keys, [1e4, 1e6], defaults.max_position_embeddings);
        let [sliding, other] = both;
        if keys.get("rope_parameters").is_some() {
            global = other;
        }
        sliding
    });
    let sliding = llama.rope.clone();
    let layers = llama.num_hidden_layers;
    let window = Some(keys.optional_count("sliding_window").unwrap_or(own.sliding_window));
    let windows = keys.windows(layers, window, |layer| (layer + 1) % 6 != 0);
    // HF transformers rejects an attention window in the last layer.
    let last = layers.saturating_sub(1);
    let windows = windows.iter().enumerate().map(|(layer, window)| window.filter(|_| layer < last)).collect();
    let attention_bias = keys.flag("attention_bias", false);
    let llama = LlamaConfig { windows, attention_bias, rope: global, local_rope: Some(sliding), ..llama };
    let attention_k_eq_v = keys.flag("attention_k_eq_v", false);
    let global_heads = keys.optional_count("num_global_key_value_heads").filter(|_| attention_k_eq_v);
    let sizes = [
        keys.optional_count("global_head_dim").unwrap_or(512),
        global_heads.unwrap_or(llama.num_key_value_heads),
    ];
    let [global_head_dim, global_key_value_heads] = global_sizes(keys, &llama, sizes);
    llama.rope.check(keys, global_head_dim);
    let shared = keys.optional_integer("num_kv_shared_layers").unwrap_or(0);
    let features = keys.optional_integer("hidden_size_per_layer_input");
    let features = features.unwrap_or(own.hidden_size_per_layer_input);
    let has_experts = keys.flag("enable_moe_block", false);
    let count = |key| if has_experts { keys.count(key) } else { keys.optional_count(key).unwrap_or(1) };
    let num_experts = count("num_experts");
    let config = PerLayerConfig {
        global_head_dim,
        global_key_value_heads,
        attention_k_eq_v,
        first_shared: layers.saturating_sub(shared),
        use_double_wide_mlp: keys.flag("use_double_wide_mlp", false),
        has_per_layer: features > 0,
        per_layer_features: features.max(1),
        vocab_size_per_layer_input: keys.optional_count("vocab_size_per_layer_input").unwrap_or(262_144),
        has_experts,
        num_experts,
        top_k_experts: experts::chosen(keys, "top_k_experts", 1, num_experts),
        moe_intermediate_size: count("moe_intermediate_size"),
        final_logit_softcapping: keys.optional_number("final_logit_softcapping"),
        llama,
    };
    if (config.first_shared..layers).any(|layer| config.source(layer) == layer) {
        let expected = "fewer layers: an earlier layer of each kind has keys and values";
        keys.refuse("num_kv_shared_layers", shared, expected);
    }
    config
}

/// Features and key-value heads of layers without a window: `sizes` of published files, or `per_layer_config`
/// of HF transformers 5.
fn global_sizes(keys: &Keys, llama: &LlamaConfig, sizes: [usize; 2]) -> [usize; 2] {
    let Some(listed) = keys.get("per_layer_config") else { return sizes };
    let global: Vec<String> = (0..llama.num_hidden_layers)
        .filter(|&layer| llama.window(layer).is_none())
        .map(|layer| layer.to_string())
        .collect();
    let one = global.first().and_then(|layer| listed.get(layer));
    let is_known = |one: &Value| {
        let names = one.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        names.into_iter().all(|name| ["head_dim", "num_key_value_heads"].contains(&name))
    };
    let size = |name, other, most| match one.and_then(|one| one.get(name)) {
        Some(size) => size.as_u64().filter(|size| (1..=most as u64).contains(size)).map(|size| size as usize),
        None => Some(other),
    };
    let base = (llama.head_dim.unwrap_or(1), llama.num_key_value_heads);
    let own = (size("head_dim", base.0, limits::HEAD), size("num_key_value_heads", base.1, limits::EXTENT));
    let count = if one.is_some() { global.len() } else { 0 };
    let is_all = listed.as_object().map(serde_json::Map::len) == Some(count);
    let alike = global.iter().all(|layer| listed.get(layer) == one);
    match own {
        (Some(features), Some(heads)) if alike && is_all && one.is_none_or(is_known) => [features, heads],
        _ => {
            let expected = "the same `head_dim` and `num_key_value_heads` for each layer without a window";
            keys.refuse("per_layer_config", listed, expected);
            sizes
        }
    }
}
