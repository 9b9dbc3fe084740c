//! ERNIE 4.5 with experts: Baidu, "ERNIE 4.5 Technical Report" (2025). Field names follow the names in the
//! Hugging Face checkpoint (`modeling_ernie4_5_moe.py`). The attention is the same as in the dense ERNIE 4.5.
//! A bias changes which experts the router chooses, but not the weights of these experts.

use dsl::nn::dot;
use dsl::{F32, Float, model};
use serde_json::json;

use crate::config::Keys;
use crate::decoder::{Decoder, Defaults, FeedForward};
use crate::ernie4_5::{self, Attention};
use crate::experts::{
    self, Divisor, ExpertsConfig, ExpertsLayer, Routing, Scores, Shared, mixture, route, swiglu,
};
use crate::family::{Family, GgufFamily, presets};

/// The whole ERNIE 4.5 network with experts, from token ids to logits.
pub type Ernie45Moe<T> = Decoder<T, ExpertsLayer<T, Attention<T>, Experts<T>>, ExpertsConfig>;

pub(crate) const FAMILY: Family = Family {
    about: "mixture of experts with shared experts, and softmax routing with a bias; rotary embedding of neighbouring features",
    stacks: &[
        experts::STACKS[0],
        experts::STACKS[1],
        experts::STACKS[2],
        experts::STACKS[3],
        experts::STACKS[4],
        ("mlp.gate.moe_statics.e_score_correction_bias", &["mlp.moe_statics.e_score_correction_bias"]),
    ],
    gguf: Some(GgufFamily {
        config: |file| {
            file.llama(json!({
                "moe_num_experts": file.count("expert_count"),
                "moe_k": file.count("expert_used_count"),
                "moe_intermediate_size": file.count("expert_feed_forward_length"),
                "moe_num_shared_experts": file.optional_count("expert_shared_count").unwrap_or(0),
                "moe_layer_start_index": file.optional_count("leading_dense_block_count").unwrap_or(0),
                "moe_layer_interval": file.optional_count("interleave_moe_layer_step"),
            }))
        },
        keys: &[
            ("moe_num_experts", "expert_count"),
            ("moe_k", "expert_used_count"),
            ("moe_intermediate_size", "expert_feed_forward_length"),
            ("moe_num_shared_experts", "expert_shared_count"),
            ("moe_layer_start_index", "leading_dense_block_count"),
            ("moe_layer_interval", "interleave_moe_layer_step"),
        ],
        parts: &[&[("exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias")], experts::GGUF_PARTS],
        ..GgufFamily::llama("ernie4_5-moe")
    }),
    presets: presets!("ernie-4.5-21b-a3b": "baidu/ERNIE-4.5-21B-A3B-PT"),
    ..Family::of(&["Ernie4_5_MoeForCausalLM"], &["Ernie4_5_MoeModel"], &["ernie4_5_moe"])
};

model! {
    /// A router in f32, and shared experts that process every token (`Ernie4_5_MoeSparseMoeBlock`).
    pub Experts<T: Float>(ExpertsConfig): FeedForward<T> {
        dims {
            D = hidden_size, F = moe_intermediate_size,
            // X is the number of experts. C is the number of experts that a token uses. O is the
            // single group of biases.
            X = num_experts, C = num_experts_per_tok, O = 1,
        }

        gate: Weight<F32>[X, D] at "gate.weight",
        bias: Weight<F32>[O, X] at "moe_statics.e_score_correction_bias",
        gate_proj: Weight[X, F, D] at "experts.*.gate_proj.weight",
        up_proj: Weight[X, F, D] at "experts.*.up_proj.weight",
        down_proj: Weight[X, D, F] at "experts.*.down_proj.weight",
        shared_experts: Shared<T>,

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            let logits = dot(x.to::<F32>(), self.gate(), D); // [B, S, X]
            let routed = route(logits, Some(self.bias().sum(O)), self.dim(C), &self.config.routing);
            let weights = [self.gate_proj(), self.up_proj(), self.down_proj()];
            let mixed = mixture(x, routed, weights, |weights| swiglu(x, weights));
            match self.config.shared_intermediate_size {
                Some(_) => mixed + self.shared_experts.forward(x),
                None => mixed,
            }
        }
    }
}

pub(crate) fn read(keys: &Keys) -> ExpertsConfig {
    keys.ignore(experts::IGNORED);
    // Tracewright does not support `use_bias`, which adds a bias to the output head.
    keys.always("use_bias", false);
    let defaults = Defaults { num_key_value_heads: Some(4), ..Defaults::of(ernie4_5::rope()) };
    let llama = ernie4_5::shared(keys, [103_424, 2560, 12_288, 28, 20], defaults);
    let least = keys.number_or("moe_norm_min", 1e-12);
    let routing = Routing { divisor: Some(Divisor::SumAtLeast(least)), ..Routing::plain(Scores::Softmax) };
    let count = |key, default| keys.optional_count(key).unwrap_or(default);
    let (layers, features) = (llama.num_hidden_layers, count("moe_intermediate_size", 1536));
    let shared = keys.optional_integer("moe_num_shared_experts").unwrap_or(2);
    let num_experts = experts::count(keys, "moe_num_experts", 64);
    ExpertsConfig {
        num_experts,
        num_experts_per_tok: experts::chosen(keys, "moe_k", 6, num_experts),
        moe_intermediate_size: features,
        shared_intermediate_size: (shared > 0).then_some(shared * features),
        sparse: sparse(keys, layers),
        biased: true,
        keys: ["moe_num_experts", "moe_intermediate_size"],
        ..ExpertsConfig::like_llama(llama, routing)
    }
}

/// From the first layer with experts, at an interval, to the last. `moe_layer_end_index` −1 is the last of
/// the network.
fn sparse(keys: &Keys, layers: usize) -> Vec<bool> {
    let first = keys.optional_integer("moe_layer_start_index").unwrap_or(1);
    let last = keys.get("moe_layer_end_index").filter(|last| last.as_i64() != Some(-1));
    let last = last.and_then(|_| keys.optional_integer("moe_layer_end_index")).unwrap_or(layers - 1);
    let interval = keys.optional_count("moe_layer_interval").unwrap_or(1);
    (0..layers).map(|layer| (layer + 1) % interval == 0 && (first..=last).contains(&layer)).collect()
}
