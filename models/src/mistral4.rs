//! Mistral Small 4: Mistral AI, "Mistral Small 4" (2026). Field names follow the names in the
//! Hugging Face checkpoint (`modeling_mistral4.py`). The network differs from DeepSeek-V3 in the
//! router, which computes scores with the softmax, and in the queries. As in Ministral 3, attention
//! multiplies the queries at large positions by a factor.

use crate::config::Keys;
use crate::decoder::read_text_tower;
use crate::deepseek_v3;
use crate::experts::Scores;
use crate::family::{Family, TOWER_IGNORABLE, TOWER_PREFIXES, presets};
use crate::latent::{self, LatentConfig, LatentDecoder, LatentDefaults};
use crate::mistral::{self, TOWER};
use crate::rope::{QueryGrowth, RopeDefaults};

/// The whole Mistral Small 4 network, from token ids to logits.
pub type Mistral4<T> = LatentDecoder<T>;

pub(crate) const FAMILY: Family = Family {
    about: "as DeepSeek-V3, but with softmax routing, and queries are multiplied by a factor that grows with the position",
    architectures: &["Mistral4ForCausalLM", TOWER],
    bases: &["Mistral4Model"],
    model_types: &["mistral4", "mistral3"],
    is: |keys| mistral::is_tower_of(keys, "mistral4"),
    prefixes: TOWER_PREFIXES,
    ignorable: TOWER_IGNORABLE,
    gguf: None,
    presets: presets!("mistral-small-4": "mistralai/Mistral-Small-4-119B-2603"),
    ..deepseek_v3::FAMILY
};

/// Keys outside of `text_config` that describe the vision tower, which is not read, and its connection to the text
/// network.
const BESIDE_TEXT: &[&str] = key_names![
    architectures image_token_id image_token_index model_type multimodal_projector_bias
    projector_hidden_act spatial_merge_size transformers_version vision_config vision_feature_layer
];

pub(crate) fn read(keys: &Keys) -> LatentConfig {
    read_text_tower(keys, true, BESIDE_TEXT, read_text)
}

fn read_text(keys: &Keys) -> LatentConfig {
    let rope = RopeDefaults {
        others: &["llama_4_scaling_beta", "max_position_embeddings", "partial_rotary_factor"],
        ..RopeDefaults::new(1_048_576)
    };
    let defaults = LatentDefaults {
        sizes: [131_072, 4096, 12_288, 36, 32],
        rope,
        rms_norm_eps: 1e-6,
        heads: [1024, 256, 64, 64, 128],
        experts: [128, 4, 2048],
        routing: ([1, 1], 1.0, 0),
    };
    let mut config = latent::read(keys, &defaults);
    config.experts.routing.scores = Scores::Softmax;
    config.experts.biased = false;
    let Some(nested) = keys.object("rope_parameters") else {
        keys.refuse("rope_parameters", "missing", "an object with `llama_4_scaling_beta`");
        return config;
    };
    config.growth = Some(QueryGrowth::read(&nested));
    // HF transformers multiplies the fraction by the features of a whole head.
    let [plain, rotated] = [config.qk_nope_head_dim, config.qk_rope_head_dim];
    let fraction = nested.optional_number("partial_rotary_factor");
    let found = fraction.map(|fraction| (fraction * (plain + rotated) as f64) as usize);
    if let (Some(fraction), true) = (fraction, found.is_some_and(|found| found != rotated)) {
        let expected =
            format!("`qk_rope_head_dim` / `qk_head_dim`, which is {rotated} / {}", plain + rotated);
        nested.refuse("partial_rotary_factor", fraction, expected);
    }
    keys.give_up(nested);
    config
}
