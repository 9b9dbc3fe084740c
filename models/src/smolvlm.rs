//! SmolVLM: Marafioti et al., "SmolVLM: Redefining small and efficient multimodal models" (2025). Names follow
//! `modeling_smolvlm.py`. The text network is a Llama, and [`vision`] has the tower.

use trace::Ignorable;

use crate::config::Keys;
use crate::decoder::{LlamaConfig, Plain, read_text_tower};
use crate::family::{BASE, Family};
use crate::llama::{self, Llama};
use crate::vision::{self, Vision};

/// The text network, from token ids to logits.
pub type SmolVlm<T> = Llama<T>;

pub(crate) const FAMILY: Family = Family {
    about: "SmolVLM: a Llama, and a SigLIP tower for images",
    prefixes: &[("model.text_model.", "model."), BASE[0], BASE[1], BASE[2]],
    ignorable: &[
        Ignorable::Suffix(".rotary_emb.inv_freq"),
        Ignorable::Prefix("model.vision_model."),
        Ignorable::Prefix("model.connector."),
    ],
    ..Family::of(&["SmolVLMForConditionalGeneration"], &[], &["smolvlm"])
};

/// A Llama and its vision tower.
#[derive(Clone, Debug, PartialEq)]
pub struct SmolVlmConfig {
    /// The text network.
    pub llama: LlamaConfig,
    /// The tower, if the configuration has one.
    pub vision: Option<Vision>,
}

descends!(SmolVlmConfig from llama: LlamaConfig);

impl From<SmolVlmConfig> for Plain {
    fn from(config: SmolVlmConfig) -> Self {
        config.llama.into()
    }
}

/// Keys of published files that change no number.
const BESIDE_TEXT: &[&str] = key_names![
    _pad_token_id architectures model_type transformers_version use_reentrant_checkpointing
];

/// Keys of a published `text_config` that HF transformers does not read.
const UNREAD: &[&str] = &[
    "_flash_attn_2_enabled",
    "neftune_noise_alpha",
    "perceiver_config",
    "pixel_shuffle_factor",
    "qk_layer_norms",
    "transformers.js_config",
    "use_resampler",
];

pub(crate) fn read(keys: &Keys) -> SmolVlmConfig {
    let read = |keys: &Keys| {
        keys.ignore(UNREAD);
        Box::new(llama::read(keys))
    };
    let llama = *read_text_tower(keys, false, BESIDE_TEXT, read);
    let vision = vision::read(keys, llama.hidden_size, llama.element);
    SmolVlmConfig { llama, vision }
}
