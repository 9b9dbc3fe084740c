//! Mistral: Jiang et al., "Mistral 7B" (2023), §2. Field names follow the names in the Hugging Face
//! checkpoint (`modeling_mistral.py`). The network differs from Llama in the attention, which has a
//! sliding window in all layers.

use serde_json::json;

use crate::config::Keys;
use crate::decoder::{Defaults, LlamaConfig, read_text_tower};
use crate::family::{Family, GgufFamily, TOWER_IGNORABLE, TOWER_PREFIXES, presets};
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
    is: |keys| is_tower_of(keys, "mistral"),
    prefixes: TOWER_PREFIXES,
    ignorable: TOWER_IGNORABLE,
    ..Family::of(&["MistralForCausalLM", TOWER], &["MistralModel"], &["mistral", "mistral3"])
};

/// The architecture of a model that consists of a vision tower and any text network by Mistral AI.
pub(crate) const TOWER: &str = "Mistral3ForConditionalGeneration";

/// Whether the object `text_config`, if there is one, describes a network of the given type.
pub(crate) fn is_tower_of(keys: &Keys, model_type: &str) -> bool {
    let text = keys.object("text_config");
    text.is_none_or(|text| text.optional_text("model_type").as_deref() == Some(model_type))
}

/// Keys outside of `text_config` that describe the vision tower and its connection to the text network.
pub(crate) const BESIDE_TEXT: &[&str] = key_names![
    architectures image_token_id image_token_index model_type multimodal_projector_bias
    projector_hidden_act spatial_merge_size transformers_version vision_config vision_feature_layer
];

pub(crate) fn read(keys: &Keys) -> LlamaConfig {
    *read_text_tower(keys, true, BESIDE_TEXT, |keys| Box::new(read_text(keys)))
}

fn read_text(keys: &Keys) -> LlamaConfig {
    let defaults = Defaults { num_key_value_heads: Some(8), ..Defaults::new(131_072) };
    let llama = LlamaConfig::shared(keys, defaults);
    let window = keys.nullable_count("sliding_window", Some(4096));
    LlamaConfig { windows: vec![window; llama.num_hidden_layers].into(), ..llama }
}
