//! SmolVLM: Marafioti et al., "SmolVLM: Redefining small and efficient multimodal models" (2025). Names follow
//! `modeling_smolvlm.py`. The text network is a Llama, and [`vision`] has the tower.

use trace::Ignorable;

use crate::config::{IGNORED, Keys};
use crate::decoder::{LlamaConfig, Plain, read_text_tower};
use crate::family::{BASE, Family};
use crate::llama::{self, Llama};
use crate::vision::{self, Connection, SIGLIP, TowerDefaults, Vision, VisionFamily};

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
    let vision = read_vision(keys, &llama);
    SmolVlmConfig { llama, vision }
}

fn read_vision(keys: &Keys, llama: &LlamaConfig) -> Option<Vision> {
    let scale_factor = keys.optional_count("scale_factor").unwrap_or(2);
    let image_token = keys.optional_integer("image_token_id").unwrap_or(128_257);
    let inner = keys.object("vision_config")?;
    inner.ignore(&["max_image_size", "size", "tie_word_embeddings", "use_base_siglip"]);
    let defaults = TowerDefaults { hidden_size: 1152, num_attention_heads: 16, patch_size: 32, ..SIGLIP };
    let text = Connection { features: llama.hidden_size, image_token, element: llama.element };
    let vision = vision::read(&inner, VisionFamily::SmolVlm, &defaults, &text);
    // HF transformers computes the row of a position in f32. With these sides, rounding chooses other rows.
    if !(1..=32).contains(&vision.side) || [19, 25, 29, 31].contains(&vision.side) {
        let expected = "1 to 32 patches on a side, and not 19, 25, 29 or 31";
        inner.refuse("image_size", vision.image_size, expected);
    }
    if scale_factor == 0 || !vision.side.is_multiple_of(scale_factor.max(1)) {
        keys.refuse(
            "scale_factor",
            scale_factor,
            format!("a divisor of the {} patches on a side", vision.side),
        );
    }
    keys.close_ignoring(inner, IGNORED);
    Some(Vision { scale_factor, ..vision })
}
