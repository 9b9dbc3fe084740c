//! Mistral: Jiang et al., "Mistral 7B" (2023), §2. Field names follow the names in the Hugging Face
//! checkpoint (`modeling_mistral.py`). The network differs from Llama in the attention, which has a
//! sliding window in all layers.

use serde_json::json;

use crate::config::Keys;
use crate::decoder::{Defaults, LlamaConfig, Plain, read_text_tower};
use crate::family::{Family, GgufFamily, SEEING_IGNORABLE, SEEING_PREFIXES, presets};
use crate::llama::{self, Llama};
use crate::pixtral;
use crate::vision::Vision;

/// The whole Mistral network, from token ids to logits.
pub type Mistral<T> = Llama<T>;

pub(crate) const FAMILY: Family = Family {
    about: "attention with a sliding window; Mistral Small 3.1 and 3.2 with a Pixtral tower for images",
    gguf: Some(GgufFamily {
        is: |file| file.experts().is_none() && file.window().is_some(),
        config: |file| file.llama(json!({ "sliding_window": file.window() })),
        ..llama::GGUF
    }),
    presets: presets!("mistral-7b-v0.1": "mistralai/Mistral-7B-v0.1"),
    is: |keys| is_tower_of(keys, "mistral"),
    prefixes: SEEING_PREFIXES,
    ignorable: SEEING_IGNORABLE,
    ..Family::of(&["MistralForCausalLM", TOWER], &["MistralModel"], &["mistral", "mistral3"])
};

/// The architecture of a model that consists of a vision tower and any text network by Mistral AI.
pub(crate) const TOWER: &str = "Mistral3ForConditionalGeneration";

/// Whether the object `text_config`, if there is one, describes a network of the given type.
pub(crate) fn is_tower_of(keys: &Keys, model_type: &str) -> bool {
    let text = keys.object("text_config");
    text.is_none_or(|text| text.optional_text("model_type").as_deref() == Some(model_type))
}

/// A Mistral, and the tower of Mistral 3.
#[derive(Clone, Debug, PartialEq)]
pub struct MistralConfig {
    /// The keys of the text network.
    pub llama: LlamaConfig,
    /// The tower, if the configuration has one.
    pub vision: Option<Vision>,
}

descends!(MistralConfig from llama: LlamaConfig);

impl From<MistralConfig> for Plain {
    fn from(config: MistralConfig) -> Self {
        config.llama.into()
    }
}

pub(crate) fn read(keys: &Keys) -> MistralConfig {
    let llama = *read_text_tower(keys, true, pixtral::BESIDE_TEXT, |keys| Box::new(read_text(keys)));
    let vision = pixtral::read(keys, &llama);
    MistralConfig { llama, vision }
}

fn read_text(keys: &Keys) -> LlamaConfig {
    let defaults = Defaults { num_key_value_heads: Some(8), ..Defaults::new(131_072) };
    let llama = LlamaConfig::shared(keys, defaults);
    let window = keys.nullable_count("sliding_window", Some(4096));
    LlamaConfig { windows: vec![window; llama.num_hidden_layers].into(), ..llama }
}
