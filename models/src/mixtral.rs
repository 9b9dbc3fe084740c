//! Mixtral: Jiang et al., "Mixtral of Experts" (2024), §2. Field names follow the names in the
//! published checkpoints. The network differs from Mistral in the feed-forward network, which
//! consists of several experts. A router chooses some experts for each token.

use dsl::nn::{Attend, Kv};
use dsl::{F32, Float, Project, Tensor, model};
use serde_json::json;

use crate::config::Keys;
use crate::decoder::{AttentionBlock, Decoder, DecoderConfig, Defaults, FeedForward, LlamaConfig};
use crate::experts::{self, ExpertsConfig, Routing, Scores, mixture, route, swiglu};
use crate::family::{Family, GgufFamily, Stacks, presets};
use crate::llama::{self, Attention};
use crate::rope::RopeDefaults;

/// The whole Mixtral network, from token ids to logits.
pub type Mixtral<T> = Decoder<T, Layer<T>, ExpertsConfig>;

pub(crate) const FAMILY: Family = Family {
    about: "mixture of experts; a checkpoint may store experts one by one or stacked",
    stacks: STACKS,
    gguf: Some(GgufFamily {
        is: |file| file.experts().is_some(),
        config: |file| {
            file.llama(json!({
                "num_local_experts": file.experts(),
                "num_experts_per_tok": file.count("expert_used_count"),
                "sliding_window": file.window(),
            }))
        },
        keys: &[("num_local_experts", "expert_count"), ("num_experts_per_tok", "expert_used_count")],
        parts: &[GGUF_PARTS],
        ..llama::GGUF
    }),
    presets: presets!("mixtral-8x7b-v0.1": "mistralai/Mixtral-8x7B-v0.1"),
    ..Family::of(&["MixtralForCausalLM"], &["MixtralModel"], &["mixtral"])
};

pub(crate) const GGUF_PARTS: &[(&str, &str)] = &[
    ("ffn_gate_inp", "block_sparse_moe.gate"),
    ("ffn_gate_exps", "block_sparse_moe.ffn_gate_exps"),
    ("ffn_up_exps", "block_sparse_moe.ffn_up_exps"),
    ("ffn_down_exps", "block_sparse_moe.ffn_down_exps"),
];

model! {
    /// Llama's layer with experts instead of the feed-forward network.
    pub Layer<T: Float, A: AttentionBlock<T> = Attention<T>, C: DecoderConfig + Project<A::Config> + Project<ExpertsConfig> = ExpertsConfig>(C): AttentionBlock<T> {
        dims { D = hidden_size }

        input_layernorm: RmsNorm[D](eps = rms_norm_eps),
        self_attn: A,
        post_attention_layernorm: RmsNorm[D](eps = rms_norm_eps),
        block_sparse_moe: Experts<T>,

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let x = x + self.self_attn.forward(self.input_layernorm(x), at, kv);
            x + self.block_sparse_moe.forward(self.post_attention_layernorm(x))
        }
    }
}

model! {
    /// The sum of chosen experts' SwiGLU outputs, weighted by the router.
    pub Experts<T: Float>(ExpertsConfig): FeedForward<T> {
        dims {
            D = hidden_size, F = moe_intermediate_size,
            // X is the number of experts, and C is the number of experts that a token uses.
            X = num_experts, C = num_experts_per_tok,
        }

        gate: Linear[D -> X],
        bias: Weight<F32>[X] at "e_score_correction_bias",
        experts: Mixture<T>,

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            self.experts.mix(x, self.gate(x), self.config.biased.then(|| self.bias()))
        }
    }

    /// The experts without their router, whose logits are given.
    pub Mixture<T: Float> {
        w1: Weight[X, F, D] at "*.w1.weight",
        w3: Weight[X, F, D] at "*.w3.weight",
        w2: Weight[X, D, F] at "*.w2.weight",

        fn mix(x: T[B, S, D], logits: T[B, S, X], bias: Option<Tensor<F32>>) -> T[B, S, D] {
            let routed = route(logits.to(), bias, self.dim(C), &self.config.routing);
            mixture(x, routed, [self.w1(), self.w3(), self.w2()], |weights| swiglu(x, weights))
        }
    }
}

/// In files of HF transformers or GGUF, and in published files.
pub(crate) const STACKS: Stacks = &[
    ("mlp.gate.weight", &["block_sparse_moe.gate.weight"]),
    ("mlp.e_score_correction_bias", &["block_sparse_moe.e_score_correction_bias"]),
    (
        "mlp.experts.gate_up_proj",
        &["block_sparse_moe.experts.*.w1.weight", "block_sparse_moe.experts.*.w3.weight"],
    ),
    ("mlp.experts.down_proj", &["block_sparse_moe.experts.*.w2.weight"]),
    ("ffn_gate_exps.weight", &["experts.*.w1.weight"]),
    ("ffn_down_exps.weight", &["experts.*.w2.weight"]),
    ("ffn_up_exps.weight", &["experts.*.w3.weight"]),
];

pub(crate) fn read(keys: &Keys) -> ExpertsConfig {
    keys.ignore(experts::IGNORED);
    let rope = RopeDefaults { theta: 1e6, ..RopeDefaults::new(131_072) };
    let defaults = Defaults { num_key_value_heads: Some(8), rms_norm_eps: 1e-5, ..Defaults::of(rope) };
    let llama = LlamaConfig::shared(keys, defaults);
    let windows = vec![keys.optional_count("sliding_window"); llama.num_hidden_layers].into();
    let num_experts = keys.optional_count("num_local_experts").unwrap_or(8);
    ExpertsConfig {
        num_experts,
        num_experts_per_tok: experts::chosen(keys, "num_experts_per_tok", 2, num_experts),
        keys: ["num_local_experts", "intermediate_size"],
        ..ExpertsConfig::like_llama(LlamaConfig { windows, ..llama }, Routing::normalized(Scores::Softmax))
    }
}
