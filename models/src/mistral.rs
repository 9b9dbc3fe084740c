//! Mistral: Jiang et al., "Mistral 7B" (2023), §2. Field names follow the names in the Hugging Face
//! checkpoint (`modeling_mistral.py`). The network differs from Llama in the attention, which has a
//! sliding window in all layers.

use serde_json::json;

use crate::config::Keys;
use crate::decoder::{Defaults, LlamaConfig};
use crate::family::{Family, GgufFamily, presets};
use crate::llama::{self, Llama};

/// The whole Mistral network, from token ids to logits.
pub type Mistral<T> = Llama<T>;

pub(crate) const FAMILY: Family = Family {
    about: "attention with a sliding window",
    gguf: Some(GgufFamily {
        is: |file| file.experts().is_none() && file.window().is_some(),
        config: |file| file.llama(json!({ "sliding_window": file.window() })),
        ..llama::GGUF
    }),
    presets: presets!("mistral-7b-v0.1": "mistralai/Mistral-7B-v0.1"),
    ..Family::of(&["MistralForCausalLM"], &["MistralModel"], &["mistral"])
};

/// Reads the `config.json` of a Mistral model. Missing configuration keys get the defaults of
/// `MistralConfig` in HF transformers.
pub(crate) fn read(keys: &Keys) -> LlamaConfig {
    let defaults = Defaults { num_key_value_heads: Some(8), ..Defaults::new(131_072) };
    let llama = LlamaConfig::shared(keys, defaults);
    let window = keys.nullable_count("sliding_window", Some(4096));
    LlamaConfig { windows: vec![window; llama.num_hidden_layers].into(), ..llama }
}
