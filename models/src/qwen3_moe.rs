//! Qwen3 with experts: "Qwen3 Technical Report" (2025), §2. Field names follow the names in the
//! published checkpoints (`modeling_qwen3_moe.py`). The network differs from Qwen3 in the experts
//! that some or all layers have.

use serde_json::json;

use crate::config::Keys;
use crate::decoder::{Decoder, Defaults, LlamaConfig};
use crate::experts::{self, Divisor, ExpertsConfig, ExpertsLayer, Routing, Scores};
use crate::family::{Family, GgufFamily, presets};
use crate::qwen3::Attention;

/// The whole Qwen3 network with experts, from token ids to logits.
pub type Qwen3Moe<T> = Decoder<T, ExpertsLayer<T, Attention<T>>, ExpertsConfig>;

pub(crate) const FAMILY: Family = Family {
    about: "norms on queries and keys; mixture of experts",
    stacks: experts::STACKS,
    gguf: Some(GgufFamily {
        config: |file| {
            file.llama(json!({
                "num_experts": file.count("expert_count"),
                "num_experts_per_tok": file.count("expert_used_count"),
                "moe_intermediate_size": file.count("expert_feed_forward_length"),
                // llama.cpp always divides the weights of experts by their sum.
                "norm_topk_prob": true,
            }))
        },
        keys: experts::GGUF_KEYS,
        parts: &[experts::GGUF_PARTS],
        ..GgufFamily::llama("qwen3moe")
    }),
    presets: presets!("qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B"),
    ..Family::of(&["Qwen3MoeForCausalLM"], &["Qwen3MoeModel"], &["qwen3_moe"])
};

pub(crate) fn read(keys: &Keys) -> ExpertsConfig {
    keys.ignore(experts::IGNORED);
    // Either all layers have a window, or no layer has a window, so this key has no effect.
    keys.ignore(&["max_window_layers"]);
    let sizes = Some([151_936, 2048, 6144, 24, 32]);
    let defaults = Defaults { sizes, num_key_value_heads: Some(4), ..Defaults::new(32_768) };
    let (attention_bias, window) = (keys.flag("attention_bias", false), window(keys));
    let llama = LlamaConfig::shared(keys, defaults);
    let layers = llama.num_hidden_layers;
    let llama = LlamaConfig { attention_bias, windows: vec![window; layers].into(), ..llama };
    let divisor = keys.flag("norm_topk_prob", false).then_some(Divisor::SumPlus(0.0));
    let num_experts = experts::count(keys, "num_experts", 128);
    ExpertsConfig {
        num_experts,
        num_experts_per_tok: experts::chosen(keys, "num_experts_per_tok", 8, num_experts),
        moe_intermediate_size: keys.optional_count("moe_intermediate_size").unwrap_or(768),
        sparse: sparse(keys, layers),
        ..ExpertsConfig::like_llama(llama, Routing { divisor, ..Routing::plain(Scores::Softmax) })
    }
}

fn window(keys: &Keys) -> Option<usize> {
    let (used, window) =
        (keys.flag("use_sliding_window", false), keys.nullable_count("sliding_window", Some(4096)));
    window.filter(|_| used)
}

/// Every `decoder_sparse_step`-th, except `mlp_only_layers`.
fn sparse(keys: &Keys, layers: usize) -> Vec<bool> {
    let step = keys.optional_count("decoder_sparse_step").unwrap_or(1);
    let mut sparse: Vec<bool> = (1..=layers).map(|layer| layer % step == 0).collect();
    keys.layers("mlp_only_layers", layers, |layer| sparse[layer] = false);
    sparse
}
