//! GLM-4.7-Flash: Zhipu AI, "GLM-4.7" (2026). Field names follow the names in the Hugging Face
//! checkpoint (`modeling_glm4_moe_lite.py`). The network is the same as DeepSeek-V3. The
//! configuration of GLM-4.7-Flash can contain a list of the layers without experts.

use crate::config::Keys;
use crate::deepseek_v3;
use crate::family::{Family, presets};
use crate::latent::{self, LatentConfig, LatentDecoder, LatentDefaults};
use crate::rope::RopeDefaults;

/// The whole GLM-4.7-Flash network, from token ids to logits.
pub type Glm4MoeLite<T> = LatentDecoder<T>;

pub(crate) const FAMILY: Family = Family {
    architectures: &["Glm4MoeLiteForCausalLM"],
    bases: &["Glm4MoeLiteModel"],
    model_types: &["glm4_moe_lite"],
    presets: presets!("glm-4.7-flash": "zai-org/GLM-4.7-Flash"),
    ..deepseek_v3::FAMILY
};

pub(crate) fn read(keys: &Keys) -> LatentConfig {
    let defaults = LatentDefaults {
        sizes: [154_880, 2048, 10_240, 47, 20],
        rope: RopeDefaults::new(202_752),
        rms_norm_eps: 1e-5,
        heads: [768, 512, 192, 64, 256],
        experts: [64, 4, 1536],
        routing: ([1, 1], 1.8, 1),
    };
    let mut config = latent::read(keys, &defaults);
    if let Some(kinds) =
        keys.kinds_of_layers("mlp_layer_types", config.num_hidden_layers, &["sparse", "dense"])
    {
        config.experts.sparse = kinds.iter().map(|kind| kind == "sparse").collect();
    }
    config
}
