//! OLMoE: Muennighoff et al., "OLMoE: Open Mixture-of-Experts Language Models" (2024), §2. The names follow
//! the published checkpoints. The network is a Mixtral that normalizes all queries and all keys, and does not
//! renormalize the router's probabilities.

use dsl::nn::{Attend, Kv, attend, softmax, topk};
use dsl::{F32, Float, Tensor, model};

use crate::config::Keys;
use crate::decoder::{AttentionBlock, Decoder, DecoderConfig, Defaults, LlamaConfig};
use crate::experts::mixture;
use crate::family::Family;
use crate::shape_check::DeclaredSize;

/// The whole network of an OLMoE.
pub type Olmoe<T> = Decoder<T, Layer<T>, OlmoeConfig>;

pub(crate) const FAMILY: Family = Family {
    // The same as Mixtral's, so that they share a row.
    about: crate::mixtral::FAMILY.about,
    stacks: &[
        ("mlp.experts.gate_up_proj", &["mlp.experts.*.gate_proj.weight", "mlp.experts.*.up_proj.weight"]),
        ("mlp.experts.down_proj", &["mlp.experts.*.down_proj.weight"]),
    ],
    ..Family::of(&["OlmoeForCausalLM"], &["OlmoeModel"], &["olmoe"])
};

model! {
    /// The layer of a Llama, with experts instead of the feed-forward network.
    pub Layer<T: Float>(OlmoeConfig): AttentionBlock<T> {
        dims {
            D = hidden_size, F = intermediate_size,
            H = num_attention_heads, K = num_key_value_heads, G = H / K, E = D / H,
            // All experts, and those chosen.
            X = num_experts, C = num_experts_per_tok,
        }

        input_layernorm: RmsNorm[D](eps = rms_norm_eps),
        self_attn: Attention,
        post_attention_layernorm: RmsNorm[D](eps = rms_norm_eps),
        mlp: Experts,

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let x = x + self.self_attn(self.input_layernorm(x), at, kv);
            x + self.mlp(self.post_attention_layernorm(x))
        }
    }

    /// Attention with norms over the features of all heads together, and clipped features (`OlmoeAttention`).
    pub Attention {
        q_proj: Linear[D -> K, G, E](bias if attention_bias),
        k_proj: Linear[D -> K, E](bias if attention_bias),
        v_proj: Linear[D -> K, E](bias if attention_bias),
        q_norm: RmsNorm[K, G, E](eps = rms_norm_eps),
        k_norm: RmsNorm[K, E](eps = rms_norm_eps),
        o_proj: Linear[K, G, E -> D](bias if attention_bias),

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let clip = self.config.clip_qkv;
            let q = at.rope(clipped(self.q_norm(self.q_proj(x)), clip)); // [B, S, K, G, E]
            let k = at.rope(clipped(self.k_norm(self.k_proj(x)), clip)); // [B, S, K, E]
            let (k, v) = kv.append(k, clipped(self.v_proj(x), clip), at); // [B, K, N, E]
            self.o_proj(attend(q, k, v, at))
        }
    }

    /// A mixture of experts, weighted by the router's probabilities.
    pub Experts {
        gate: Linear[D -> X],
        gate_proj: Weight[X, F, D] at "experts.*.gate_proj.weight",
        up_proj: Weight[X, F, D] at "experts.*.up_proj.weight",
        down_proj: Weight[X, D, F] at "experts.*.down_proj.weight",

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            let (share, chosen) = topk(softmax(self.gate(x).to::<F32>(), X), X, self.dim(C));
            let share = if self.config.norm_topk_prob { share / share.sum(X) } else { share };
            let weights = [self.gate_proj(), self.up_proj(), self.down_proj()];
            mixture(x, share.rename(X, C), chosen.rename(X, C), weights)
        }
    }
}

/// Bounds features to ±`bound`. `None` changes nothing.
#[track_caller]
fn clipped<T: Float>(x: Tensor<T>, bound: Option<f64>) -> Tensor<T> {
    match bound {
        Some(bound) => x.maximum(-bound).minimum(bound),
        None => x,
    }
}

/// The `config.json` of an OLMoE.
#[derive(Clone, Debug, PartialEq)]
pub struct OlmoeConfig {
    /// The keys that OLMoE shares with Llama.
    pub llama: LlamaConfig,
    /// The number of experts in each layer.
    pub num_experts: usize,
    /// The number of experts that each token chooses.
    pub num_experts_per_tok: usize,
    /// Whether the probabilities of the chosen experts are divided by their sum.
    pub norm_topk_prob: bool,
    /// The bound on queries, keys and values; `None` means that there is no bound.
    pub clip_qkv: Option<f64>,
}

descends!(OlmoeConfig from llama: LlamaConfig);

impl DecoderConfig for OlmoeConfig {}

impl OlmoeConfig {
    /// Sizes in the configuration that the checkpoint's header can confirm.
    pub fn sizes(&self) -> Vec<DeclaredSize> {
        let router = &[("model.layers.*.mlp.gate.weight", 0)];
        let mut sizes = self.llama.sizes();
        sizes.push(DeclaredSize::extent("num_experts", self.num_experts, router));
        sizes
    }
}

/// Reads the `config.json` of an OLMoE. The defaults are the same as in `OlmoeConfig` of transformers.
pub(crate) fn read(keys: &Keys) -> OlmoeConfig {
    // Only training reads these keys.
    keys.ignore(&["output_router_logits", "router_aux_loss_coef"]);
    let attention_bias = keys.flag("attention_bias", false);
    let llama = LlamaConfig::shared(keys, Defaults { rms_norm_eps: 1e-5, ..Defaults::new(4096) });
    let num_experts = keys.optional_count("num_experts").unwrap_or(64);
    let num_experts_per_tok = keys.optional_count("num_experts_per_tok").unwrap_or(8);
    if num_experts_per_tok > num_experts {
        let expected = format!("at most {num_experts}, the experts there are");
        keys.refuse("num_experts_per_tok", num_experts_per_tok, expected);
    }
    OlmoeConfig {
        llama: LlamaConfig { attention_bias, ..llama },
        num_experts,
        num_experts_per_tok,
        norm_topk_prob: keys.flag("norm_topk_prob", false),
        clip_qkv: keys.optional_number("clip_qkv"),
    }
}
