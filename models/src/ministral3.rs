//! Ministral 3: Mistral AI, "Ministral 3" (2025). Field names follow the names in the Hugging Face
//! checkpoint (`modeling_ministral3.py`). The network differs from Mistral in the queries. As in
//! Llama 4, attention multiplies the queries at large positions by a factor.

use dsl::Float;
use dsl::nn::Attend;

use crate::config::Keys;
use crate::decoder::{Decoder, DecoderConfig, Defaults, LlamaConfig, read_text_tower};
use crate::family::{Family, SEEING_IGNORABLE, SEEING_PREFIXES, presets};
use crate::llama::{Attention, Layer, Mlp};
use crate::mistral::{self, TOWER};
use crate::pixtral;
use crate::rope::{QueryGrowth, RopeDefaults, RopeParameters, RopeScaling};
use crate::vision::Vision;

/// The whole Ministral 3 network, from token ids to logits.
pub type Ministral3<T> = Decoder<T, Layer<T, Attention<T>, Mlp<T>, Ministral3Config>, Ministral3Config>;

pub(crate) const FAMILY: Family = Family {
    about: "queries are multiplied by a factor that grows with the position; a Pixtral tower for images",
    presets: presets!("ministral-3-8b": "mistralai/Ministral-3-8B-Base-2512"),
    is: |keys| mistral::is_tower_of(keys, "ministral3"),
    prefixes: SEEING_PREFIXES,
    ignorable: SEEING_IGNORABLE,
    ..Family::of(&["Ministral3ForCausalLM", TOWER], &["Ministral3Model"], &["ministral3", "mistral3"])
};

/// The values in the `config.json` of a Ministral 3 model.
#[derive(Clone, Debug, PartialEq)]
pub struct Ministral3Config {
    /// The configuration keys that Ministral 3 shares with Llama.
    pub llama: LlamaConfig,
    /// The factor by which attention multiplies the queries.
    pub growth: QueryGrowth,
    /// The tower, if the configuration has one.
    pub vision: Option<Vision>,
}

descends!(Ministral3Config from llama: LlamaConfig);

impl DecoderConfig for Ministral3Config {
    fn attention<T: Float>(&self, layer: usize, rotary: &Attend<T>) -> Attend<T> {
        self.growth.applied(rotary.clone().windowed(self.window(layer)), self.max_position_embeddings)
    }
}

pub(crate) fn read(keys: &Keys) -> Ministral3Config {
    let config = read_text_tower(keys, true, pixtral::BESIDE_TEXT, read_text);
    let vision = pixtral::read(keys, &config);
    Ministral3Config { vision, ..config }
}

fn read_text(keys: &Keys) -> Ministral3Config {
    // The rope object also contains keys for the factor on queries.
    let rope = RopeDefaults {
        theta: 1e6,
        others: &["llama_4_scaling_beta", "max_position_embeddings"],
        ..RopeDefaults::new(262_144)
    };
    let defaults = Defaults {
        sizes: Some([131_072, 4096, 14_336, 34, 32]),
        num_key_value_heads: Some(8),
        head_dim: Some(128),
        rms_norm_eps: 1e-5,
        ..Defaults::of(rope)
    };
    let mut growth = QueryGrowth { beta: 0.1, original: 16_384 };
    let llama = LlamaConfig::with_rope(keys, defaults, |keys, defaults| {
        let Some(nested) = keys.object("rope_parameters") else { return unset(keys) };
        growth = QueryGrowth::read(&nested);
        keys.give_up(nested);
        RopeParameters::read(keys, defaults)
    });
    let window = keys.optional_count("sliding_window");
    let windows = vec![window; llama.num_hidden_layers].into();
    Ministral3Config { llama: LlamaConfig { windows, ..llama }, growth, vision: None }
}

/// Without the key `rope_parameters`.
fn unset(keys: &Keys) -> RopeParameters {
    for key in ["rope_scaling", "rope_theta"] {
        if let Some(found) = keys.get(key) {
            keys.refuse(key, found, "the embedding in `rope_parameters`, as transformers reads it");
        }
    }
    let scaling = RopeScaling::Yarn {
        factor: 16.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original_max_position_embeddings: 16_384.0,
        truncate: true,
        attention_factor: 1.0,
    };
    RopeParameters { scaling, ..RopeParameters::plain(1e6) }
}
