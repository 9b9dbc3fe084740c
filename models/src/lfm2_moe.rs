//! LFM2 with experts: "LFM2 Technical Report" (2025), §2. Field names follow the names in the Hugging Face
//! checkpoint (`modeling_lfm2_moe.py`). The network differs from LFM2 in the experts, which all layers except
//! the first layers have. A router chooses the experts by sigmoid scores and a bias.

use serde_json::json;

use crate::config::Keys;
use crate::experts::{self, Divisor, ExpertsConfig, Routing, Scores};
use crate::family::{Family, GgufFamily, joined, presets};
use crate::lfm2;
use crate::short_conv::{self, ConvConfig, ConvDecoder};

/// The whole LFM2 network with experts, from token ids to logits.
pub type Lfm2Moe<T> = ConvDecoder<T>;

pub(crate) const FAMILY: Family = Family {
    about: "short convolutions between attention layers; mixture of experts",
    stacks: &[
        (
            "feed_forward.experts.gate_up_proj",
            &["feed_forward.experts.*.w1.weight", "feed_forward.experts.*.w3.weight"],
        ),
        ("feed_forward.experts.down_proj", &["feed_forward.experts.*.w2.weight"]),
        ("feed_forward.experts.w1.weight", &["feed_forward.experts.*.w1.weight"]),
        ("feed_forward.experts.w3.weight", &["feed_forward.experts.*.w3.weight"]),
        ("feed_forward.experts.w2.weight", &["feed_forward.experts.*.w2.weight"]),
    ],
    gguf: Some(GgufFamily {
        architecture: "lfm2moe",
        config: |file| {
            file.sigmoid();
            let own = json!({
                "num_experts": file.count("expert_count"),
                "num_experts_per_tok": file.count("expert_used_count"),
                "moe_intermediate_size": file.count("expert_feed_forward_length"),
                "num_dense_layers": file.optional_count("leading_dense_block_count").unwrap_or(0),
            });
            joined([short_conv::gguf_config(file), own])
        },
        keys: experts::GGUF_KEYS,
        parts: &[
            &[
                ("ffn_gate_inp", "feed_forward.gate"),
                ("exp_probs_b.bias", "feed_forward.expert_bias"),
                ("ffn_gate_exps", "feed_forward.experts.w1"),
                ("ffn_up_exps", "feed_forward.experts.w3"),
                ("ffn_down_exps", "feed_forward.experts.w2"),
            ],
            short_conv::GGUF_PARTS,
        ],
        ..short_conv::GGUF
    }),
    presets: presets!("lfm2-8b-a1b": "LiquidAI/LFM2-8B-A1B"),
    ..Family {
        architectures: &["Lfm2MoeForCausalLM"],
        bases: &["Lfm2MoeModel"],
        model_types: &["lfm2_moe"],
        ..lfm2::FAMILY
    }
};

pub(crate) fn read(keys: &Keys) -> ConvConfig {
    keys.ignore(experts::IGNORED);
    let config = short_conv::shared(keys, [65_536, 2048, 7168, 32, 32]);
    let count = |key, default| keys.optional_count(key).unwrap_or(default);
    let dense = keys.optional_integer("num_dense_layers").unwrap_or(2);
    let routing = Routing {
        divisor: keys.flag("norm_topk_prob", true).then_some(Divisor::SumPlus(1e-6)),
        factor: keys.number_or("routed_scaling_factor", 1.0),
        ..Routing::plain(Scores::Sigmoid)
    };
    let num_experts = experts::count(keys, "num_experts", 32);
    let experts = ExpertsConfig {
        num_experts,
        num_experts_per_tok: experts::chosen(keys, "num_experts_per_tok", 4, num_experts),
        moe_intermediate_size: count("moe_intermediate_size", 1792),
        sparse: (0..config.num_hidden_layers).map(|layer| layer >= dense).collect(),
        biased: keys.flag("use_expert_bias", true),
        routing,
        ..config.experts
    };
    ConvConfig { experts, ..config }
}
