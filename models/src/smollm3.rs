//! SmolLM3: Hugging Face, "SmolLM3: smol, multilingual, long-context reasoner" (2025). Field names
//! follow the names in the Hugging Face checkpoint (`modeling_smollm3.py`). The network differs
//! from Llama in some layers, which have no rotary embedding ("NoPE": Yang et al., "RoPE to NoPE
//! and Back Again", 2025). The networks SmolLM and SmolLM2 are the same as Llama.

use dsl::Float;
use dsl::nn::Attend;

use crate::config::Keys;
use crate::decoder::{Decoder, DecoderConfig, Defaults, LlamaConfig};
use crate::family::{Family, GgufFamily, presets};
use crate::llama::{self, Attention, Layer, Mlp};
use crate::rope::RopeDefaults;

/// The whole SmolLM3 network, from token ids to logits.
pub type SmolLm3<T> = Decoder<T, Layer<T, Attention<T>, Mlp<T>, SmolLm3Config>, SmolLm3Config>;

pub(crate) const FAMILY: Family = Family {
    about: "some layers without rotary embedding",
    gguf: Some(GgufFamily { architecture: "smollm3", is: |_| true, ..llama::GGUF }),
    presets: presets!("smollm3-3b": "HuggingFaceTB/SmolLM3-3B"),
    ..Family::of(&["SmolLM3ForCausalLM"], &["SmolLM3Model"], &["smollm3"])
};

/// The values in the `config.json` of a SmolLM3 model.
#[derive(Clone, Debug, PartialEq)]
pub struct SmolLm3Config {
    /// The configuration keys that SmolLM3 shares with Llama.
    pub llama: LlamaConfig,
    /// Whether each layer has a rotary embedding for queries and keys.
    pub rotary: Vec<bool>,
}

descends!(SmolLm3Config from llama: LlamaConfig);

impl DecoderConfig for SmolLm3Config {
    fn attention<T: Float>(&self, layer: usize, rotary: &Attend<T>) -> Attend<T> {
        let at = match self.rotary.get(layer) {
            Some(false) => Attend::causal(rotary.at, rotary.queries),
            _ => rotary.clone(),
        };
        at.windowed(self.window(layer))
    }
}

pub(crate) fn read(keys: &Keys) -> SmolLm3Config {
    let rope = RopeDefaults { theta: 2e6, ..RopeDefaults::new(32_768) };
    let (num_key_value_heads, tie_word_embeddings) = (Some(4), true);
    let defaults = Defaults { num_key_value_heads, tie_word_embeddings, ..Defaults::of(rope) };
    let (attention_bias, mlp_bias) = (keys.flag("attention_bias", false), keys.flag("mlp_bias", false));
    // Only the converted metadata of a GGUF file contain this key.
    let attention_out_bias = keys.flag("attention_out_bias", attention_bias);
    let llama = LlamaConfig::shared(keys, defaults);
    let rotary = rotary(keys, llama.num_hidden_layers);
    let (used, window) = (keys.flag("use_sliding_window", false), keys.optional_count("sliding_window"));
    let windows = keys.windows(llama.num_hidden_layers, window, |layer| {
        used && window.is_some() && rotary.get(layer) == Some(&false)
    });
    // HF transformers does not read these two keys of the published `config.json`.
    keys.ignore(&["max_window_layers", "pretraining_tp"]);
    SmolLm3Config {
        llama: LlamaConfig { attention_bias, attention_out_bias, mlp_bias, windows, ..llama },
        rotary,
    }
}

/// `no_rope_layers` contains 1 for layers **with** one; without it, all but every `no_rope_layer_interval`-th
/// have one.
fn rotary(keys: &Keys, layers: usize) -> Vec<bool> {
    let interval = keys.optional_count("no_rope_layer_interval").unwrap_or(4);
    let by_interval = || (1..=layers).map(|layer| layer % interval != 0).collect();
    let Some(value) = keys.get("no_rope_layers") else { return by_interval() };
    let bit = |item: &serde_json::Value| match item.as_u64() {
        Some(0) => Some(false),
        Some(1) => Some(true),
        _ => None,
    };
    match value.as_array().and_then(|items| items.iter().map(bit).collect::<Option<Vec<bool>>>()) {
        Some(bits) if bits.len() >= layers => bits,
        _ => {
            keys.refuse("no_rope_layers", value, format!("a list of 0 or 1 for each of {layers} layers"));
            by_interval()
        }
    }
}
