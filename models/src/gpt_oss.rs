//! gpt-oss: OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card" (2025), §2. Field names follow the
//! names in the Hugging Face checkpoint (`modeling_gpt_oss.py`). Attention has a sink for each
//! head, and every second layer has an attention window. The experts have biases and clamped gates.

use dsl::nn::{Attend, Kv, attend, dot};
use dsl::{Axis, F32, Float, Tensor, model};

use crate::config::Keys;
use crate::decoder::{AttentionBlock, Decoder, DecoderConfig, Defaults, FeedForward, LlamaConfig};
use crate::experts::{self, Routing, Scores, mixture, route};
use crate::family::{Family, presets};
use crate::llama::Layer;
use crate::rope::{RopeDefaults, RopeParameters, RopeScaling};
use crate::shape_check::DeclaredSize;

/// The whole gpt-oss network, from token ids to logits.
pub type GptOss<T> = Decoder<T, Layer<T, Attention<T>, Experts<T>, GptOssConfig>, GptOssConfig>;

pub(crate) const FAMILY: Family = Family {
    about: "attention sinks, MXFP4 weights, and a mixture of experts with biases and clamped gates",
    quantized: &["mxfp4"],
    presets: presets!("gpt-oss-20b": "openai/gpt-oss-20b"),
    ..Family::of(&["GptOssForCausalLM"], &["GptOssModel"], &["gpt_oss"])
};

model! {
    /// Attention with a sink for each head. A sink is an additional score in the softmax that
    /// belongs to no value.
    pub Attention<T: Float>(GptOssConfig): AttentionBlock<T> {
        dims {
            D = hidden_size,
            H = num_attention_heads, K = num_key_value_heads, G = H / K, E = head_dim or D / H,
        }

        q_proj: Linear[D -> K, G, E](bias if attention_bias),
        k_proj: Linear[D -> K, E](bias if attention_bias),
        v_proj: Linear[D -> K, E](bias if attention_bias),
        sinks: Weight[H],
        o_proj: Linear[K, G, E -> D](bias if attention_bias),

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let q = at.rope(self.q_proj(x)); // [B, S, K, G, E]
            let (k, v) = kv.append(at.rope(self.k_proj(x)), self.v_proj(x), at); // [B, K, N, E]
            let sinks = self.sinks().unmerge(H, &[K.of(self.dim(K)), G.of(self.dim(G))]);
            self.o_proj(attend(q, k, v, &at.clone().with_sinks(sinks)))
        }
    }
}

model! {
    /// A mixture of experts. Each expert has one matrix in which rows of the gate and rows of the
    /// up projection alternate (`GptOssExperts`).
    pub Experts<T: Float>(GptOssConfig): FeedForward<T> {
        dims {
            D = hidden_size, F = intermediate_size, P = 2 * F,
            // X is the number of experts, and C is the number of experts that a token uses.
            X = num_experts, C = num_experts_per_tok,
        }

        router: Linear[D -> X](bias),
        gate_up_proj: Weight[X, D, P] at "experts.gate_up_proj",
        gate_up_bias: Weight[X, P] at "experts.gate_up_proj_bias",
        down_proj: Weight[X, F, D] at "experts.down_proj",
        down_bias: Weight[X, D] at "experts.down_proj_bias",

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            let routed = route(self.router(x).to::<F32>(), None, self.dim(C), &Routing::normalized(Scores::Softmax));
            // The rows of the gates come first, because the archive stores the rows in this order.
            const TWO: Axis = Axis("Two");
            let pairs = |of: Tensor<T>| of.unmerge(P, &[F.of(self.dim(F)), TWO.of(2)]);
            let gate_up = pairs(self.gate_up_proj()).permute(&[X, TWO, F, D]).merge(&[TWO, F], P); // [X, P, D]
            let gate_up_bias = pairs(self.gate_up_bias()).permute(&[X, TWO, F]).merge(&[TWO, F], P); // [X, P]
            let weights = [gate_up, gate_up_bias, self.down_proj().permute(&[X, D, F]), self.down_bias()];
            let &GptOssConfig { alpha, limit, .. } = &*self.config;
            mixture(x, routed, weights, |[gate_up, gate_up_bias, down, down_bias]| {
                let both = dot(x, gate_up, D) + gate_up_bias;
                let [gate, up] = both.split(P, [self.dim(F); 2]).map(|half| half.rename(P, F).minimum(limit));
                dot((up.maximum(-limit) + 1.0) * (gate * (gate * alpha).logistic()), down, F) + down_bias
            })
        }
    }
}

/// The values in the `config.json` of a gpt-oss model.
#[derive(Clone, Debug, PartialEq)]
pub struct GptOssConfig {
    /// The configuration keys that gpt-oss shares with Llama.
    pub llama: LlamaConfig,
    /// The number of experts in each layer.
    pub num_experts: usize,
    /// The number of experts that each token chooses.
    pub num_experts_per_tok: usize,
    /// The factor by which the input of the gates' sigmoid is multiplied.
    pub alpha: f64,
    /// The bound to which each expert clamps its gate and its up projection.
    pub limit: f64,
}

descends!(GptOssConfig from llama: LlamaConfig);

impl DecoderConfig for GptOssConfig {}

impl GptOssConfig {
    /// Returns the configured sizes that Tracewright compares with the tensor shapes in the
    /// checkpoint.
    pub fn sizes(&self) -> Vec<DeclaredSize> {
        let router = &[("model.layers.*.mlp.router.weight", 0)];
        let features = &[("model.layers.*.mlp.experts.down_proj", 1)];
        let mut sizes = self.llama.sizes();
        sizes.retain(|size| size.key != "intermediate_size");
        sizes.push(DeclaredSize::extent("num_local_experts", self.num_experts, router));
        sizes.push(DeclaredSize::extent("intermediate_size", self.intermediate_size, features));
        sizes
    }
}

/// Reads the `config.json` of a gpt-oss model. Missing configuration keys get the defaults of
/// `GptOssConfig` in HF transformers.
pub(crate) fn read(keys: &Keys) -> GptOssConfig {
    keys.ignore(experts::IGNORED);
    // Published files contain these keys, but HF transformers does not read them.
    keys.ignore(&["experts_per_token", "initial_context_length"]);
    let defaults = Defaults {
        sizes: Some([201_088, 2880, 2880, 36, 64]),
        num_key_value_heads: Some(8),
        head_dim: Some(64),
        rms_norm_eps: 1e-5,
        ..Defaults::of(RopeDefaults { theta: 150_000.0, ..RopeDefaults::new(131_072) })
    };
    let llama = LlamaConfig::with_rope(keys, defaults, |keys, defaults| {
        let read = RopeParameters::read(keys, defaults);
        let unset = ["rope_parameters", "rope_scaling"].into_iter().all(|key| keys.get(key).is_none());
        RopeParameters { scaling: if unset { usual() } else { read.scaling }, ..read }
    });
    let window = keys.nullable_count("sliding_window", Some(128));
    let windows = keys.windows(llama.num_hidden_layers, window, |layer| layer % 2 == 0);
    let llama = LlamaConfig { attention_bias: keys.flag("attention_bias", true), windows, ..llama };
    let num_experts = experts::count(keys, "num_experts", 128);
    GptOssConfig {
        llama,
        num_experts,
        num_experts_per_tok: experts::chosen(keys, "num_experts_per_tok", 4, num_experts),
        alpha: keys.number_or("swiglu_alpha", 1.702),
        limit: keys.number_or("swiglu_limit", 7.0),
    }
}

/// The default rotary embedding, if the configuration does not describe a rotary embedding.
fn usual() -> RopeScaling {
    RopeScaling::Yarn {
        factor: 32.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original_max_position_embeddings: 4096.0,
        truncate: false,
        attention_factor: 0.1 * libm::log(32.0) + 1.0,
    }
}
