//! The Nemotron-H network. Field names follow the names in HF transformers
//! (`modeling_nemotron_h.py`). Each layer has a norm and one block. The block is a Mamba-2 block,
//! attention without a rotary embedding, a feed-forward network, or a mixture of experts.

mod config;

use bake::Ignorable;
use dsl::nn::{Attend, Cache, Kv, Position, Recurrent, dot, relu};
use dsl::{F32, Float, Tensor, model};

use crate::experts::{self, mixture, route};
use crate::family::{Family, GgufFamily, presets};
use crate::llama::Attention;
use crate::mamba2::{self, Mamba2};

pub(crate) use config::read;
pub use config::{Kind, NemotronHConfig};

pub(crate) const FAMILY: Family = Family {
    about: "one part in each layer: Mamba-2, attention without rotation, squared ReLU, or experts",
    prefixes: &[
        ("backbone.", "model."),
        ("embeddings.", "model.embeddings."),
        ("layers.", "model.layers."),
        ("norm_f.", "model.norm_f."),
    ],
    embedding: "model.embeddings.weight",
    ignorable: &[Ignorable::Prefix("mtp.")],
    stacks: &[
        ("mixer.experts.up_proj", &["mixer.experts.*.up_proj.weight"]),
        ("mixer.experts.down_proj", &["mixer.experts.*.down_proj.weight"]),
        ("mixer.experts.up_proj.weight", &["mixer.experts.*.up_proj.weight"]),
        ("mixer.experts.down_proj.weight", &["mixer.experts.*.down_proj.weight"]),
    ],
    gguf: Some(GgufFamily {
        also: &["nemotron_h"],
        config: config::gguf,
        keys: experts::GGUF_KEYS,
        parts: &[GGUF_PARTS],
        outside: &[("token_embd", "model.embeddings"), ("output_norm", "model.norm_f")],
        arranged: |part, end, _, tensor| mamba2::stored(part, end, tensor),
        ..GgufFamily::llama("nemotron_h_moe")
    }),
    presets: presets!("nemotron-3-nano-30b-a3b": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
    ..Family::of(&["NemotronHForCausalLM"], &["NemotronHModel"], &["nemotron_h"])
};

/// The names of a layer's tensors in GGUF files and in the network.
const GGUF_PARTS: &[(&str, &str)] = &[
    ("attn_norm", "norm"),
    ("attn_q", "mixer.q_proj"),
    ("attn_k", "mixer.k_proj"),
    ("attn_v", "mixer.v_proj"),
    ("attn_output", "mixer.o_proj"),
    ("ssm_in", "mixer.in_proj"),
    ("ssm_conv1d", "mixer.conv1d"),
    ("ssm_dt.bias", "mixer.dt_bias"),
    ("ssm_a", "mixer.A_log"),
    ("ssm_d", "mixer.D"),
    ("ssm_norm", "mixer.norm"),
    ("ssm_out", "mixer.out_proj"),
    ("ffn_up", "mixer.up_proj"),
    ("ffn_down", "mixer.down_proj"),
    ("ffn_gate_inp", "mixer.gate"),
    ("exp_probs_b.bias", "mixer.gate.e_score_correction_bias"),
    ("ffn_up_exps", "mixer.experts.up_proj"),
    ("ffn_down_exps", "mixer.experts.down_proj"),
    ("ffn_up_shexp", "mixer.shared_experts.up_proj"),
    ("ffn_down_shexp", "mixer.shared_experts.down_proj"),
    ("ffn_latent_down", "mixer.fc1_latent_proj"),
    ("ffn_latent_up", "mixer.fc2_latent_proj"),
];

model! {
    /// The whole network, from token ids `[B, S]` to logits over the vocabulary.
    pub NemotronH<T: Float>(NemotronHConfig) {
        dims {
            V = vocab_size, D = hidden_size, L = num_hidden_layers, A = intermediate_size,
            K = num_key_value_heads, E = head_dim or 1,
            // X is the number of experts. F and Z are the features and the inputs of an expert. I
            // is the features of the shared expert, which every token uses.
            X = num_experts, F = moe_intermediate_size, Z = latent_size, I = shared_features,
            // The sizes of Mamba-2, as in `Mamba2`.
            N = mamba_num_heads, W = n_groups, R = N / W, U = ssm_state_size, O = mamba_head_dim,
            Y = N * O, Q = W * U, P = Y + Q + Q, M = conv_memory,
        }
        cache {
            L of [K, E] if attends,
            L of scan: Recurrent<F32>[W, R, U, O] if recurs,
            L of conv: Recurrent[M, P] if recurs,
        }
        shard { K, F, V over model; X over expert; B over data }

        model: BaseModel,
        lm_head: Linear[D -> V],

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            self.model(tokens, at, cache)
        }
        fn logits(x: T[.., D]) -> f32[.., V] {
            self.lm_head(x).to()
        }
    }

    /// The network without the output head: the embedding, the layers and the final norm.
    pub BaseModel {
        embeddings: Embedding[V, D],
        layers: [Layer; L],
        norm: RmsNorm[D](eps = rms_norm_eps, style = wide) at "norm_f",

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let attention = Attend::causal(at, S);
            let mut x = self.embeddings(tokens);
            for (i, layer) in self.layers.iter().enumerate() {
                x = match self.config.kinds[i] {
                    Kind::Attention => layer.forward(x, &attention, cache.state(i)),
                    Kind::Mamba => {
                        let (scan, conv) = cache.pair(i, ["scan", "conv"]);
                        layer.recur(x, at, scan, conv)
                    }
                    Kind::Mlp => layer.feed_forward(x),
                    Kind::Experts => layer.mixed(x),
                };
            }
            self.norm(x)
        }
    }

    /// A layer with a norm and one of four kinds of blocks. The layer has a function for each kind
    /// of block.
    pub Layer {
        norm: RmsNorm[D](eps = rms_norm_eps, style = wide),
        attention: Attention<T> at "mixer",
        mamba: Mamba2<T> at "mixer",
        mlp: Mlp at "mixer",
        experts: Experts at "mixer",

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            x + self.attention.forward(self.norm(x), at, kv)
        }

        fn recur(x: T[B, S, D], at: Position, scan: &mut Recurrent<F32>, conv: &mut Recurrent<T>) -> T[B, S, D] {
            x + self.mamba.forward(self.norm(x), at, scan, conv)
        }

        fn feed_forward(x: T[B, S, D]) -> T[B, S, D] {
            x + self.mlp(self.norm(x))
        }

        fn mixed(x: T[B, S, D]) -> T[B, S, D] {
            x + self.experts(self.norm(x))
        }
    }

    /// A feed-forward network without a gate. The activation function is the square of ReLU (So et
    /// al., "Primer", 2021).
    pub Mlp {
        up_proj: Linear[D -> A](bias if mlp_bias),
        down_proj: Linear[A -> D](bias if mlp_bias),

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            self.down_proj(squared(self.up_proj(x)))
        }
    }

    /// Routed and shared experts, whose feed-forward networks have no gate. In some networks, the
    /// routed experts process a projection of the features to fewer dimensions.
    pub Experts {
        gate: Linear[D -> X],
        bias: Weight<F32>[X] at "gate.e_score_correction_bias",
        up: Weight[X, F, Z] at "experts.*.up_proj.weight",
        down: Weight[X, Z, F] at "experts.*.down_proj.weight",
        shared_up: Linear[D -> I](bias if mlp_bias) at "shared_experts.up_proj",
        shared_down: Linear[I -> D](bias if mlp_bias) at "shared_experts.down_proj",
        inward: Linear[D -> Z](bias if mlp_bias) at "fc1_latent_proj",
        outward: Linear[Z -> D](bias if mlp_bias) at "fc2_latent_proj",

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            let experts = &self.config.experts;
            let routed = route(self.gate(x).to::<F32>(), Some(self.bias()), experts.num_experts_per_tok, &experts.routing);
            let y = if self.config.is_latent { self.inward(x) } else { x.rename(D, Z) };
            let mixed = mixture(y, routed, [self.up(), self.down()], |[up, down]| dot(squared(dot(y, up, Z)), down, F));
            let mixed = if self.config.is_latent { self.outward(mixed) } else { mixed.rename(Z, D) };
            mixed + self.shared_down(squared(self.shared_up(x)))
        }
    }
}

#[track_caller]
fn squared<T: Float>(x: Tensor<T>) -> Tensor<T> {
    let x = relu(x);
    x * x
}
