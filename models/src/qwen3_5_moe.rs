//! The Qwen3.5 network with experts. Field names follow the names in the Hugging Face checkpoint
//! (`modeling_qwen3_5_moe.py`). The network differs from Qwen3.5 in the experts, which are the same
//! as in Qwen3-Next.

use serde_json::json;

use crate::config::Keys;
use crate::decoder::{Defaults, LlamaConfig};
use crate::delta_net;
use crate::experts;
use crate::family::{Family, GgufFamily, presets};
use crate::hybrid;
use crate::qwen3_5::{self, DeltaDecoder, DeltaNet, Qwen35Config};
use crate::qwen3_next::{self, GatedExperts};

/// The whole Qwen3.5 network with experts, from token ids to logits.
pub type Qwen35Moe<T> = DeltaDecoder<T, DeltaNet<T>, GatedExperts<T>>;

pub(crate) const FAMILY: Family = Family {
    // Qwen3-Next has the same text, so the table of architectures describes the two families in one
    // row.
    about: qwen3_next::FAMILY.about,
    stacks: experts::STACKS,
    architectures: &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
    bases: &["Qwen3_5MoeTextModel", "Qwen3_5MoeModel"],
    model_types: &["qwen3_5_moe_text", "qwen3_5_moe"],
    gguf: Some(GgufFamily {
        architecture: "qwen35moe",
        config: |file| delta_net::gguf_config(file, json!({ "value_heads_tiled": true })),
        ..delta_net::GGUF
    }),
    presets: presets!("qwen3.5-35b-a3b": "Qwen/Qwen3.5-35B-A3B"),
    ..qwen3_5::FAMILY
};

pub(crate) fn read(keys: &Keys) -> Qwen35Config {
    hybrid::read_qwen(keys, |keys| {
        // Every layer has experts.
        let sizes = Some([248_320, 2048, 512, 40, 16]);
        let defaults = Defaults { sizes, num_key_value_heads: Some(2), ..delta_net::defaults() };
        qwen3_next::gated(keys, LlamaConfig::shared(keys, defaults), [256, 8], true)
    })
}
