//! Gemma 3: "Gemma 3 Technical Report" (2025), §2. Field names follow the Hugging Face checkpoint
//! (`modeling_gemma3.py`). [`vision`] has the tower.

use serde_json::json;

use crate::config::{IGNORED, Keys};
use crate::decoder::{Defaults, LlamaConfig, read_text_tower};
use crate::family::{Family, GgufFamily, SEEING_IGNORABLE, SEEING_PREFIXES, presets};
use crate::gemma::{self, Gemma, GemmaConfig};
use crate::rope::RopeParameters;
use crate::vision::{self, Connection, SIGLIP, Vision, VisionFamily};

/// The whole Gemma 3 network, from token ids to logits.
pub type Gemma3<T> = Gemma<T>;

pub(crate) const FAMILY: Family = Family {
    about: "Gemma 3: 1B and FunctionGemma 270M, and 4B, 12B and 27B with a SigLIP tower for images",
    gguf: Some(GgufFamily {
        config: |file| {
            let mut keys = gemma::gguf_keys(file, 62, 6, file.window().is_some());
            // In `config.json`, no factor multiplies the cosine and sine of the local layers.
            file.usual("rope.scaling.attn_factor", |factor| factor == 1.0, "1");
            keys["rope_local_base_freq"] = json!(file.optional_number("rope.freq_base_swa").unwrap_or(1e4));
            file.llama(keys)
        },
        ..gemma::gguf("gemma3")
    }),
    prefixes: SEEING_PREFIXES,
    ignorable: SEEING_IGNORABLE,
    presets: presets!("functiongemma-270m": "google/functiongemma-270m-it", "gemma-3-1b": "google/gemma-3-1b-it", "gemma-3-4b": "google/gemma-3-4b-it", "gemma-3-12b": "google/gemma-3-12b-it", "gemma-3-27b": "google/gemma-3-27b-it"),
    ..Family::of(
        &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
        &["Gemma3TextModel", "Gemma3Model"],
        &["gemma3_text", "gemma3"],
    )
};

/// The text network, and its vision tower.
#[derive(Clone, Debug, PartialEq)]
pub struct Gemma3Config {
    /// The text network.
    pub gemma: GemmaConfig,
    /// The tower, if the configuration has one.
    pub vision: Option<Vision>,
}

descends!(Gemma3Config from gemma: GemmaConfig);

impl From<Gemma3Config> for GemmaConfig {
    fn from(config: Gemma3Config) -> Self {
        config.gemma
    }
}

/// Keys outside of `text_config` that describe the vision tower and its connection to the text tower.
const IGNORED_BESIDE_TEXT: &[&str] = key_names![
    architectures boi_token_index eoi_token_index eos_token_id image_token_index initializer_range
    mm_tokens_per_image model_type transformers_version
];

/// From the top level, or from `text_config`.
pub(crate) fn read(keys: &Keys) -> Gemma3Config {
    let gemma = read_text_tower(keys, true, IGNORED_BESIDE_TEXT, read_text);
    let vision = read_vision(keys, &gemma);
    Gemma3Config { gemma, vision }
}

fn read_vision(keys: &Keys, text: &LlamaConfig) -> Option<Vision> {
    let inner = keys.object("vision_config")?;
    let image_token = keys.agreed(
        ("image_token_index", keys.optional_integer("image_token_index")),
        ("image_token_id", keys.optional_integer("image_token_id")),
    );
    let vectors = keys.optional_count("mm_tokens_per_image").unwrap_or(256);
    inner.ignore(&["projection_dim", "vision_use_head"]);
    let image_token = image_token.unwrap_or(262_144);
    let text = Connection { features: text.hidden_size, image_token, element: text.element };
    let vision = vision::read(&inner, VisionFamily::Gemma3, &SIGLIP, &text);
    let squares = vectors.isqrt().max(1);
    vision::check_side(&inner, &vision);
    if squares * squares != vectors || !vision.side.is_multiple_of(squares) {
        let expected = format!("the square of a divisor of the {} patches on a side", vision.side);
        keys.refuse("mm_tokens_per_image", vectors, expected);
    }
    keys.close_ignoring(inner, IGNORED);
    Some(Vision { scale_factor: (vision.side / squares).max(1), ..vision })
}

fn read_text(keys: &Keys) -> GemmaConfig {
    keys.one_of("hidden_activation", &["gelu_pytorch_tanh"]);
    // Published files contain this key, but HF transformers does not read it.
    keys.ignore(&["cache_implementation"]);
    for key in ["attn_logit_softcapping", "use_bidirectional_attention"] {
        if let Some(found) = keys.get(key).filter(|found| found.as_bool() != Some(false)) {
            let expected = "null or false: transformers does not apply it to a Gemma 3 that generates";
            keys.refuse(key, found, expected);
        }
    }
    let defaults = Defaults {
        hidden_act: &["gelu_pytorch_tanh"],
        sizes: Some([262_208, 2304, 9216, 26, 8]),
        num_key_value_heads: Some(4),
        head_dim: Some(256),
        tie_word_embeddings: true,
        ..Defaults::new(131_072)
    };
    let mut local_rope = None;
    let llama = LlamaConfig::with_rope(keys, defaults, |keys, defaults| {
        let both = RopeParameters::by_layer_type(keys, [1e4, 1e6], defaults.max_position_embeddings);
        let [local, global] = both;
        local_rope = Some(local);
        global
    });
    let features = llama.head_dim.unwrap_or_default();
    local_rope.iter().for_each(|rope| rope.check(keys, features));
    let window = keys.optional_count("sliding_window").unwrap_or(4096);
    let period = keys.sliding_period().unwrap_or(6);
    let windows = keys.windows(llama.num_hidden_layers, Some(window), |layer| (layer + 1) % period != 0);
    let attention_bias = keys.flag("attention_bias", false);
    GemmaConfig {
        llama: LlamaConfig { windows, attention_bias, local_rope, ..llama },
        query_pre_attn_scalar: keys.number_or("query_pre_attn_scalar", 256.0),
        attn_logit_softcapping: None,
        final_logit_softcapping: keys.optional_number("final_logit_softcapping"),
    }
}
