//! gpt-oss: OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card" (2025), §2. Field names follow the
//! names in the Hugging Face checkpoint (`modeling_gpt_oss.py`). Attention has a sink for each
//! head, and every second layer has an attention window. The experts have biases and clamped gates.

use std::mem;

use dsl::nn::{Attend, Kv, attend, dot};
use dsl::{Axis, F32, Float, Tensor, model};
use irpa::StoredOrder;
use ops::WeightFormat;
use serde_json::{Value, json};
use trace::Quantization;

use crate::config::{Keys, is_mxfp4};
use crate::decoder::{AttentionBlock, Decoder, DecoderConfig, Defaults, FeedForward, LlamaConfig};
use crate::experts::{self, Routing, Scores, mixture, route};
use crate::family::{Family, GgufFamily, Metadata, presets};
use crate::llama::Layer;
use crate::rope::{RopeDefaults, RopeParameters, RopeScaling};
use crate::shape_check::DeclaredSize;

const TWO: Axis = Axis("Two");

/// The whole gpt-oss network, from token ids to logits.
pub type GptOss<T> = Decoder<T, Layer<T, Attention<T>, Experts<T>, GptOssConfig>, GptOssConfig>;

pub(crate) const FAMILY: Family = Family {
    about: "attention sinks, MXFP4 weights, and a mixture of experts with biases and clamped gates",
    quantized: &["mxfp4"],
    gguf: Some(GgufFamily {
        config: gguf,
        keys: experts::GGUF_KEYS,
        parts: &[&[
            ("attn_sinks.weight", "self_attn.sinks"),
            ("ffn_gate_inp", "mlp.router"),
            ("ffn_gate_exps.weight", "mlp.experts.gate_proj"),
            ("ffn_gate_exps.bias", "mlp.experts.gate_proj_bias"),
            ("ffn_up_exps.weight", "mlp.experts.up_proj"),
            ("ffn_up_exps.bias", "mlp.experts.up_proj_bias"),
            ("ffn_down_exps.weight", "mlp.experts.down_proj"),
            ("ffn_down_exps.bias", "mlp.experts.down_proj_bias"),
        ]],
        arranged: |part, end, _, tensor| match (part, end, &mut tensor.shape[..]) {
            ("ffn_gate_exps" | "ffn_up_exps" | "ffn_down_exps", "weight", [_, outputs, inputs]) => {
                mem::swap(outputs, inputs);
                StoredOrder::Transposed
            }
            _ => StoredOrder::Same,
        },
        ..GgufFamily::llama("gpt-oss")
    }),
    presets: presets!("gpt-oss-20b": "openai/gpt-oss-20b"),
    ..Family::of(&["GptOssForCausalLM"], &["GptOssModel"], &["gpt_oss"])
};

/// The `config.json` that corresponds to a GGUF file (`LLM_ARCH_OPENAI_MOE` in llama.cpp).
fn gguf(file: &Metadata<'_>) -> Value {
    let mut keys = file.llama(json!({
        "attention_bias": file.is_biased("attn_q"),
        "intermediate_size": file.count("expert_feed_forward_length"),
        "num_local_experts": file.count("expert_count"),
        "num_experts_per_tok": file.count("expert_used_count"),
        "sliding_window": file.count("attention.sliding_window"),
        "gate_up_split": true,
    }));
    // GGUF files do not contain this key, which is false in all published checkpoints.
    if let Some(scaling) = keys["rope_scaling"].as_object_mut() {
        scaling.insert("truncate".into(), false.into());
    }
    keys
}

model! {
    /// Attention with sinks, which are scores without a value in the softmax.
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
    /// Rows of gate and up projection alternate in each expert's matrix (`GptOssExperts`).
    pub Experts<T: Float>(GptOssConfig): FeedForward<T> {
        dims {
            D = hidden_size, F = intermediate_size, P = 2 * F,
            // X is the number of experts, and C is the number of experts that a token uses.
            X = num_experts, C = num_experts_per_tok,
        }

        router: Linear[D -> X](bias),
        gate_up_proj: Weight[X, D, P] at "experts.gate_up_proj",
        gate_up_bias: Weight[X, P] at "experts.gate_up_proj_bias",
        gate_proj: Weight[X, D, F] at "experts.gate_proj",
        gate_bias: Weight[X, F] at "experts.gate_proj_bias",
        up_proj: Weight[X, D, F] at "experts.up_proj",
        up_bias: Weight[X, F] at "experts.up_proj_bias",
        down_proj: Weight[X, F, D] at "experts.down_proj",
        down_bias: Weight[X, D] at "experts.down_proj_bias",

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            let routed = route(self.router(x).to::<F32>(), None, self.dim(C), &Routing::normalized(Scores::Softmax));
            let &GptOssConfig { alpha, limit, gate_up_split, .. } = &*self.config;
            let gated = |gate: Tensor<T>, up: Tensor<T>| {
                let gate = gate.minimum(limit);
                (up.minimum(limit).maximum(-limit) + 1.0) * (gate * (gate * alpha).logistic())
            };
            let (down, down_bias) = (self.down_proj().permute(&[X, D, F]), self.down_bias());
            if gate_up_split {
                let [gate, up] = [self.gate_proj(), self.up_proj()].map(|weight| weight.permute(&[X, F, D]));
                let weights = [gate, self.gate_bias(), up, self.up_bias(), down, down_bias];
                mixture(x, routed, weights, |[gate, gate_bias, up, up_bias, down, down_bias]| {
                    dot(gated(dot(x, gate, D) + gate_bias, dot(x, up, D) + up_bias), down, F) + down_bias
                })
            } else {
                let weights = [self.gate_up_proj().permute(&[X, P, D]), self.gate_up_bias(), down, down_bias];
                mixture(x, routed, weights, |[gate_up, gate_up_bias, down, down_bias]| {
                    let both = dot(x, gate_up, D) + gate_up_bias;
                    let pairs = both.unmerge(P, &[F.of(self.dim(F)), TWO.of(2)]);
                    let [gate, up] = pairs.split(TWO, [1, 1]).map(|half| half.merge(&[F, TWO], F));
                    dot(gated(gate, up), down, F) + down_bias
                })
            }
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
    /// Whether the published checkpoint stores the matrices of experts in MXFP4.
    pub mxfp4: bool,
    /// Whether the checkpoint stores the matrices of gates and of up projections separately, as GGUF files do.
    pub gate_up_split: bool,
}

descends!(GptOssConfig from llama: LlamaConfig);

impl DecoderConfig for GptOssConfig {}

impl GptOssConfig {
    /// Returns the storage formats of the matrices in a published checkpoint.
    pub(crate) fn stored(&self) -> Quantization {
        let matrices = ["gate_up_proj", "down_proj"].into_iter().filter(|_| self.mxfp4);
        let key = |matrix| format!("model.layers.*.mlp.experts.{matrix}");
        Quantization::by_key(matrices.map(|matrix| (key(matrix), WeightFormat::Mxfp4)).collect())
    }

    /// Returns the sizes that Tracewright compares with the tensor shapes in the checkpoint.
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
        mxfp4: is_mxfp4(keys),
        gate_up_split: keys.flag("gate_up_split", false),
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
