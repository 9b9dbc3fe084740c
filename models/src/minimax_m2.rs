//! MiniMax-M2: MiniMax, "MiniMax-M2" (2025). Field names follow the names in the published
//! checkpoints (`modeling_minimax_m2.py`). The network differs from Mixtral in three ways.
//! Attention has a norm over all query heads and a norm over all key heads. The rotary embedding
//! rotates only some features of a head. The router has sigmoid scores and a bias.

use serde_json::{Value, json};

use crate::config::Keys;
use crate::decoder::{Decoder, Defaults, LlamaConfig};
use crate::experts::{self, ExpertsConfig, Routing, Scores};
use crate::family::{Family, GgufFamily, Metadata, presets};
use crate::mixtral::{self, Layer};
use crate::olmoe::{Attention, OlmoeConfig};
use crate::rope::RopeDefaults;

/// The whole MiniMax-M2 network, from token ids to logits.
pub type MinimaxM2<T> = Decoder<T, Layer<T, Attention<T>, OlmoeConfig>, OlmoeConfig>;

pub(crate) const FAMILY: Family = Family {
    about: "mixture of experts as in Mixtral, with sigmoid routing and a bias",
    stacks: mixtral::STACKS,
    gguf: Some(GgufFamily {
        config: gguf,
        keys: experts::GGUF_KEYS,
        parts: &[&[("exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias")], mixtral::GGUF_PARTS],
        ..GgufFamily::llama("minimax-m2")
    }),
    presets: presets!("minimax-m2.5": "MiniMaxAI/MiniMax-M2.5"),
    ..Family::of(&["MiniMaxM2ForCausalLM"], &["MiniMaxM2Model"], &["minimax_m2"])
};

/// The `config.json` that corresponds to a GGUF file (`LLM_ARCH_MINIMAX_M2` in llama.cpp).
fn gguf(file: &Metadata<'_>) -> Value {
    file.require_sigmoid();
    file.llama(json!({
        "num_local_experts": file.count("expert_count"),
        "num_experts_per_tok": file.count("expert_used_count"),
        "rotary_dim": file.count("rope.dimension_count"),
        "partial_rotary_factor": file.partial_rotary_factor(),
    }))
}

/// Keys of published files that HF transformers does not read, each with the published value.
const UNREAD: &[&str] = &[
    "attn_type_list",
    "layernorm_full_attention_beta",
    "layernorm_linear_attention_beta",
    "layernorm_mlp_beta",
    "mlp_intermediate_size",
    "mtp_transformer_layers",
    "num_mtp_modules",
    "qk_norm_type",
    "scoring_func",
    "shared_intermediate_size",
    "shared_moe_mode",
    "sliding_window",
    "use_mtp",
    "use_qk_norm",
    "use_routing_bias",
];

pub(crate) fn read(keys: &Keys) -> OlmoeConfig {
    keys.ignore(experts::IGNORED);
    keys.ignore(UNREAD);
    let head_dim = keys.optional_count("head_dim").unwrap_or(128);
    let rotated = keys.optional_count("rotary_dim").map(|rotated| rotated as f64 / head_dim as f64);
    let rope = RopeDefaults {
        theta: 5e6,
        partial_rotary_factor: Some(rotated.unwrap_or(1.0)),
        ..RopeDefaults::new(196_608)
    };
    let defaults = Defaults {
        sizes: Some([200_064, 3072, 1536, 62, 48]),
        num_key_value_heads: Some(8),
        head_dim: Some(head_dim),
        ..Defaults::of(rope)
    };
    let num_experts = keys.optional_count("num_local_experts").unwrap_or(256);
    let config = ExpertsConfig {
        num_experts,
        num_experts_per_tok: experts::chosen(keys, "num_experts_per_tok", 8, num_experts),
        biased: true,
        keys: ["num_local_experts", "intermediate_size"],
        ..ExpertsConfig::like_llama(LlamaConfig::shared(keys, defaults), Routing::normalized(Scores::Sigmoid))
    };
    OlmoeConfig { experts: config, clip_qkv: None }
}
