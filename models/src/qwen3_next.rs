//! The Qwen3-Next network. Field names follow the names in the Hugging Face checkpoint
//! (`modeling_qwen3_next.py`). The network differs from Qwen3.5 in the experts, and in the order of
//! the projections of a DeltaNet.

use dsl::nn::{Position, Recurrent, silu};
use dsl::{F32, Float, Tensor, model};
use serde_json::json;
use trace::Ignorable;

use crate::config::Keys;
use crate::decoder::{Defaults, FeedForward, LlamaConfig};
use crate::delta_net::{self, delta_net};
use crate::experts::{self, Divisor, ExpertsConfig, Routing, Scores, Shared, mixture, route, swiglu};
use crate::family::{Family, GgufFamily, presets};
use crate::qwen3_5::{DeltaBlock, DeltaDecoder, Qwen35Config};

/// The whole Qwen3-Next network, from token ids to logits.
pub type Qwen3Next<T> = DeltaDecoder<T, DeltaNet<T>, GatedExperts<T>>;

pub(crate) const FAMILY: Family = Family {
    about: "Qwen3.5's layers, many experts beside a gated one",
    ignorable: &[Ignorable::Suffix(".rotary_emb.inv_freq"), Ignorable::Prefix("mtp.")],
    stacks: experts::STACKS,
    gguf: Some(GgufFamily {
        architecture: "qwen3next",
        parts: &[delta_net::GGUF_PARTS, experts::GGUF_PARTS],
        config: |file| {
            delta_net::gguf_config(file, json!({ "norm_topk_prob": true, "projections_split": true }))
        },
        ..delta_net::GGUF
    }),
    presets: presets!("qwen3-next-80b-a3b": "Qwen/Qwen3-Next-80B-A3B-Instruct"),
    ..Family::of(&["Qwen3NextForCausalLM"], &["Qwen3NextModel"], &["qwen3_next"])
};

model! {
    /// Projections store all outputs of a key head together (`Qwen3NextGatedDeltaNet`).
    pub DeltaNet<T: Float>(Qwen35Config): DeltaBlock<T> {
        dims {
            D = hidden_size,
            W = linear_num_key_heads, N = linear_num_value_heads, R = N / W,
            U = linear_key_head_dim, X = linear_value_head_dim,
            // Z is the outputs for a key head: a query, a key, R values and R gates. A is the gates
            // b and a of the key head, R of each.
            Y = R * X, Z = U + U + Y + Y, A = R + R,
            P = W * U + W * U + N * X, J = conv_memory + 1, I = 1,
        }

        in_proj_qkvz: Linear[D -> W, Z],
        in_proj_qkv: Linear[D -> P],
        in_proj_z: Linear[D -> W, R, X],
        in_proj_ba: Linear[D -> W, A],
        taps: Weight[P, I, J] at "conv1d.weight",
        dt_bias: Weight<F32>[N],
        a_log: Weight<F32>[N] at "A_log",
        norm: RmsNorm<F32>[X](eps = rms_norm_eps),
        out_proj: Linear[W, R, X -> D],

        fn forward(x: T[B, S, D], at: Position, delta: &mut Recurrent<F32>, conv: &mut Recurrent<T>) -> T[B, S, D] {
            let (mixed, z) = if self.config.projections_split { (self.in_proj_qkv(x), self.in_proj_z(x)) } else {
                    let [u, y] = [self.dim(U), self.dim(Y)];
                    let [q, k, v, z] = self.in_proj_qkvz(x).split(Z, [u, u, y, y]); // [B, S, W, …]
                    // The convolution reads all queries, then all keys, then all values.
                    let mixed = Tensor::concat(&[q, k, v].map(|part| part.merge(&[W, Z], P)), P);
                    (mixed, z.unmerge(Z, &[self.dims.dim(R), self.dims.dim(X)]))
                };
            let gates = self.in_proj_ba(x).split(A, [self.dim(R); 2]).map(|gate| gate.rename(A, R));
            let weights = [self.dt_bias(), self.a_log()];
            let read = delta_net((mixed, self.taps()), gates, weights, at, (delta, conv), false); // [B, S, W, R, X]
            let gate = silu(z.to::<F32>());
            self.out_proj((self.norm(read) * gate).to())
        }
    }
}

model! {
    /// A mixture of routed experts and one shared expert with a gate (`Qwen3NextSparseMoeBlock`).
    pub GatedExperts<T: Float>(ExpertsConfig): FeedForward<T> {
        dims {
            D = hidden_size, F = moe_intermediate_size,
            // X is the number of experts, and C is the number of experts that a token uses. O is
            // the single output of the gate.
            X = num_experts, C = num_experts_per_tok, O = 1,
        }

        gate: Linear[D -> X],
        gate_proj: Weight[X, F, D] at "experts.*.gate_proj.weight",
        up_proj: Weight[X, F, D] at "experts.*.up_proj.weight",
        down_proj: Weight[X, D, F] at "experts.*.down_proj.weight",
        shared_expert: Shared<T>,
        shared_expert_gate: Linear[D -> O],

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            let routed = route(self.gate(x).to::<F32>(), None, self.dim(C), &self.config.routing);
            let weights = [self.gate_proj(), self.up_proj(), self.down_proj()];
            let mixed = mixture(x, routed, weights, |weights| swiglu(x, weights));
            let (shared, gate) = (self.shared_expert.forward(x), self.shared_expert_gate(x));
            mixed + shared * gate.logistic().sum(O).broadcast(shared)
        }
    }
}

pub(crate) fn read(keys: &Keys) -> Qwen35Config {
    let sizes = Some([151_936, 2048, 5632, 48, 16]);
    let defaults = Defaults { sizes, num_key_value_heads: Some(2), ..delta_net::defaults() };
    if let Some(step) = keys.optional_count("decoder_sparse_step").filter(|&step| step != 1) {
        keys.refuse("decoder_sparse_step", step, "1: all layers have experts");
    }
    if let Some(found) = keys.get("mlp_only_layers").filter(|found| *found != &serde_json::json!([])) {
        keys.refuse("mlp_only_layers", found, "an empty list: all layers have experts");
    }
    // Published files contain this key, but HF transformers does not read this key. No layer has a
    // window.
    keys.always("use_sliding_window", false);
    let normalizes = keys.flag("norm_topk_prob", true);
    gated(keys, LlamaConfig::shared(keys, defaults), [512, 10], normalizes)
}

/// With a gated shared expert. Defaults: experts, and chosen ones.
pub(crate) fn gated(
    keys: &Keys,
    llama: LlamaConfig,
    [all, chosen]: [usize; 2],
    normalizes: bool,
) -> Qwen35Config {
    keys.ignore(experts::IGNORED);
    let config = delta_net::read(keys, llama);
    let num_experts = experts::count(keys, "num_experts", all);
    let divisor = normalizes.then_some(Divisor::SumPlus(0.0));
    let experts = ExpertsConfig {
        num_experts,
        num_experts_per_tok: experts::chosen(keys, "num_experts_per_tok", chosen, num_experts),
        moe_intermediate_size: keys.optional_count("moe_intermediate_size").unwrap_or(512),
        shared_intermediate_size: keys.optional_count("shared_expert_intermediate_size").or(Some(512)),
        sparse: vec![true; config.num_hidden_layers],
        routing: Routing { divisor, ..Routing::plain(Scores::Softmax) },
        ..config.experts
    };
    Qwen35Config { experts, ..config }
}
