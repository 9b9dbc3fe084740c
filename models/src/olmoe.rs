//! OLMoE: Muennighoff et al., "OLMoE: Open Mixture-of-Experts Language Models" (2024), §2. Field
//! names follow the names in the published checkpoints. The network differs from Mixtral in two
//! ways. Attention has a norm over all query heads and a norm over all key heads. The router does
//! not divide the probabilities of the chosen experts by their sum.

use dsl::nn::{Attend, Kv, attend};
use dsl::{Float, Tensor, model};

use crate::config::Keys;
use crate::decoder::{AttentionBlock, Decoder, DecoderConfig, Defaults, LlamaConfig};
use crate::experts::{self, Divisor, Experts, ExpertsConfig, Routing, Scores};
use crate::family::Family;
use crate::llama::Layer;
use crate::shape_check::DeclaredSize;

/// The whole OLMoE network, from token ids to logits.
pub type Olmoe<T> = Decoder<T, Layer<T, Attention<T>, Experts<T>, OlmoeConfig>, OlmoeConfig>;

pub(crate) const FAMILY: Family = Family {
    // Mixtral has the same text, so the table of architectures describes the two families in one
    // row.
    about: crate::mixtral::FAMILY.about,
    stacks: experts::STACKS,
    ..Family::of(&["OlmoeForCausalLM"], &["OlmoeModel"], &["olmoe"])
};

model! {
    /// Norms over all heads together, then clipped queries, keys and values (`OlmoeAttention`).
    pub Attention<T: Float>(OlmoeConfig): AttentionBlock<T> {
        dims {
            D = hidden_size,
            H = num_attention_heads, K = num_key_value_heads, G = H / K, E = head_dim or D / H,
        }

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
}

/// To −`bound` … `bound`.
#[track_caller]
fn clipped<T: Float>(x: Tensor<T>, bound: Option<f64>) -> Tensor<T> {
    match bound {
        Some(bound) => x.maximum(-bound).minimum(bound),
        None => x,
    }
}

/// The values in the `config.json` of an OLMoE model.
#[derive(Clone, Debug, PartialEq)]
pub struct OlmoeConfig {
    /// The configuration keys that OLMoE shares with other networks with experts.
    pub experts: ExpertsConfig,
    /// The bound for clipping the queries, keys and values. With `None`, attention does not clip.
    pub clip_qkv: Option<f64>,
}

descends!(OlmoeConfig from experts.llama: LlamaConfig, through experts: ExpertsConfig);

impl DecoderConfig for OlmoeConfig {}

impl OlmoeConfig {
    /// Returns the configured sizes that Tracewright compares with the tensor shapes in the checkpoint.
    pub fn sizes(&self) -> Vec<DeclaredSize> {
        self.experts.sizes()
    }
}

pub(crate) fn read(keys: &Keys) -> OlmoeConfig {
    keys.ignore(experts::IGNORED);
    let attention_bias = keys.flag("attention_bias", false);
    let llama = LlamaConfig::shared(keys, Defaults { rms_norm_eps: 1e-5, ..Defaults::new(4096) });
    let divisor = keys.flag("norm_topk_prob", false).then_some(Divisor::SumPlus(0.0));
    let routing = Routing { divisor, ..Routing::plain(Scores::Softmax) };
    let num_experts = experts::count(keys, "num_experts", 64);
    let experts = ExpertsConfig {
        num_experts,
        num_experts_per_tok: experts::chosen(keys, "num_experts_per_tok", 8, num_experts),
        keys: ["num_experts", "intermediate_size"],
        ..ExpertsConfig::like_llama(LlamaConfig { attention_bias, ..llama }, routing)
    };
    OlmoeConfig { experts, clip_qkv: keys.optional_number("clip_qkv") }
}
