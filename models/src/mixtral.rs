//! Mixtral: Jiang et al., "Mixtral of Experts" (2024), §2. The names follow the published checkpoints. The
//! network is a Mistral with several experts instead of a feed-forward network. A router chooses a few
//! experts for each token.

use dsl::nn::{Attend, Kv, softmax, topk};
use dsl::{F32, Float, model};
use serde_json::json;

use crate::config::Keys;
use crate::decoder::{AttentionBlock, Decoder, DecoderConfig, Defaults, LlamaConfig};
use crate::experts::mixture;
use crate::family::{Family, GgufFamily, Stacks, presets};
use crate::llama;
use crate::rope::RopeDefaults;
use crate::shape_check::DeclaredSize;

/// The whole network of a Mixtral.
pub type Mixtral<T> = Decoder<T, Layer<T>, MixtralConfig>;

pub(crate) const FAMILY: Family = Family {
    about: "the likeliest of several experts for each token; per-expert and stacked checkpoints",
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
        parts: &[
            ("ffn_gate_inp", "block_sparse_moe.gate"),
            ("ffn_gate_exps", "block_sparse_moe.ffn_gate_exps"),
            ("ffn_up_exps", "block_sparse_moe.ffn_up_exps"),
            ("ffn_down_exps", "block_sparse_moe.ffn_down_exps"),
        ],
        ..llama::GGUF
    }),
    presets: presets!("mixtral-8x7b-v0.1": "mistralai/Mixtral-8x7B-v0.1"),
    ..Family::of(&["MixtralForCausalLM"], &["MixtralModel"], &["mixtral"])
};

model! {
    /// The layer of a Llama, with experts instead of the feed-forward network.
    pub Layer<T: Float>(MixtralConfig): AttentionBlock<T> {
        dims {
            D = hidden_size, F = intermediate_size,
            // All experts, and those chosen.
            X = num_local_experts, C = num_experts_per_tok,
        }

        input_layernorm: RmsNorm[D](eps = rms_norm_eps),
        self_attn: llama::Attention<T>,
        post_attention_layernorm: RmsNorm[D](eps = rms_norm_eps),
        block_sparse_moe: Experts,

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let x = x + self.self_attn.forward(self.input_layernorm(x), at, kv);
            x + self.block_sparse_moe(self.post_attention_layernorm(x))
        }
    }

    /// A mixture of experts with a router. The result is a sum over the chosen experts' SwiGLUs, weighted by
    /// the router's probabilities.
    pub Experts {
        gate: Linear[D -> X],
        w1: Weight[X, F, D] at "experts.*.w1.weight",
        w3: Weight[X, F, D] at "experts.*.w3.weight",
        w2: Weight[X, D, F] at "experts.*.w2.weight",

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            let likely = softmax(self.gate(x).to::<F32>(), X);
            let (share, chosen) = topk(likely, X, self.dim(C));
            let (share, chosen) = ((share / share.sum(X)).rename(X, C), chosen.rename(X, C)); // [B, S, C]
            mixture(x, share, chosen, [self.w1(), self.w3(), self.w2()])
        }
    }
}

/// The `config.json` of a Mixtral.
#[derive(Clone, Debug, PartialEq)]
pub struct MixtralConfig {
    /// The keys that Mixtral shares with Llama.
    pub llama: LlamaConfig,
    /// The number of experts in each layer.
    pub num_local_experts: usize,
    /// The number of experts that each token chooses.
    pub num_experts_per_tok: usize,
}

descends!(MixtralConfig from llama: LlamaConfig);

impl DecoderConfig for MixtralConfig {}

impl MixtralConfig {
    /// Sizes in the configuration that the checkpoint's header can confirm.
    pub fn sizes(&self) -> Vec<DeclaredSize> {
        let router = &[("model.layers.*.block_sparse_moe.gate.weight", 0)];
        let mut sizes = self.llama.sizes();
        sizes.push(DeclaredSize::extent("num_local_experts", self.num_local_experts, router));
        sizes
    }
}

/// Keys that only training reads.
const IGNORED: &[&str] = &["output_router_logits", "router_aux_loss_coef", "router_jitter_noise"];

/// Keys of the experts in the layout of transformers and GGUF, and the corresponding keys in the published
/// layout.
const STACKS: Stacks = &[
    ("mlp.gate.weight", &["block_sparse_moe.gate.weight"]),
    (
        "mlp.experts.gate_up_proj",
        &["block_sparse_moe.experts.*.w1.weight", "block_sparse_moe.experts.*.w3.weight"],
    ),
    ("mlp.experts.down_proj", &["block_sparse_moe.experts.*.w2.weight"]),
    ("ffn_gate_exps.weight", &["experts.*.w1.weight"]),
    ("ffn_down_exps.weight", &["experts.*.w2.weight"]),
    ("ffn_up_exps.weight", &["experts.*.w3.weight"]),
];

/// Reads the `config.json` of a Mixtral. The defaults are the same as in `MixtralConfig` of transformers.
pub(crate) fn read(keys: &Keys) -> MixtralConfig {
    keys.ignore(IGNORED);
    let rope = RopeDefaults { theta: 1e6, ..RopeDefaults::new(131_072) };
    let defaults = Defaults { num_key_value_heads: Some(8), rms_norm_eps: 1e-5, ..Defaults::of(rope) };
    let llama = LlamaConfig::shared(keys, defaults);
    let num_local_experts = keys.optional_count("num_local_experts").unwrap_or(8);
    let num_experts_per_tok = keys.optional_count("num_experts_per_tok").unwrap_or(2);
    if num_experts_per_tok > num_local_experts {
        let expected = format!("at most {num_local_experts}, the experts there are");
        keys.refuse("num_experts_per_tok", num_experts_per_tok, expected);
    }
    let windows = vec![keys.optional_count("sliding_window"); llama.num_hidden_layers].into();
    MixtralConfig { llama: LlamaConfig { windows, ..llama }, num_local_experts, num_experts_per_tok }
}
