//! The Nemotron-H network. Field names follow the names in HF transformers
//! (`modeling_nemotron_h.py`). Each layer has a norm and one block. The block is a Mamba-2 block,
//! attention without a rotary embedding, a feed-forward network, or a mixture of experts.

use dsl::nn::{Attend, Cache, Kv, Position, Recurrent};
use dsl::{F32, Float, model};
use files::limits;
use serde_json::{Value, json};
use trace::Ignorable;

use crate::config::Keys;
use crate::decoder::{Defaults, LlamaConfig};
use crate::experts::{self, ExpertsConfig};
use crate::family::{Family, GgufFamily, Metadata, joined, presets};
use crate::hybrid::{self, KindNames};
use crate::llama::Attention;
use crate::mamba2::{self, Kind, Mamba2, Mamba2Config, Mamba2Keys};
use crate::rope::RopeParameters;
use crate::ungated::{UngatedExperts, UngatedMlp};

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
        config: gguf,
        keys: experts::GGUF_KEYS,
        parts: &[&[("attn_norm", "norm")], mamba2::GGUF_PARTS, experts::GGUF_PARTS],
        blocks: &[("self_attn", "mixer"), ("mamba", "mixer"), ("mlp", "mixer")],
        outside: &[("token_embd", "model.embeddings"), ("output_norm", "model.norm_f")],
        arranged: |part, end, _, tensor| mamba2::stored(part, end, tensor),
        ..GgufFamily::llama("nemotron_h_moe")
    }),
    presets: presets!("nemotron-3-nano-30b-a3b": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
    ..Family::of(&["NemotronHForCausalLM"], &["NemotronHModel"], &["nemotron_h"])
};

/// The keys of Mamba-2, with the defaults of `NemotronHConfig` in HF transformers.
const MAMBA: Mamba2Keys = Mamba2Keys {
    heads: ("mamba_num_heads", 128),
    groups: ("n_groups", 8),
    state_size: ("ssm_state_size", 128),
    head_dim: "mamba_head_dim",
    taps: "conv_kernel",
    conv_bias: "use_conv_bias",
    proj_bias: "use_bias",
};

/// `LLM_ARCH_NEMOTRON_H` and `LLM_ARCH_NEMOTRON_H_MOE` in llama.cpp.
fn gguf(file: &Metadata<'_>) -> Value {
    let heads = file.key_value_heads();
    let features = file.each_layer("feed_forward_length", Some(heads.len()));
    let kind = |layer: usize| match (heads[layer], features[layer]) {
        (0, 0) => "mamba",
        (_, 0) => "attention",
        _ if file.has(&format!("blk.{layer}.ffn_gate_inp.weight")) => "moe",
        _ => "mlp",
    };
    let kinds: Vec<&str> = (0..heads.len()).map(kind).collect();
    let [rms, other] = ["rms_epsilon", "epsilon"].map(|end| format!("attention.layer_norm_{end}"));
    let keys = json!({
        "intermediate_size": file.most("feed_forward_length").filter(|&most| most > 0),
        "layers_block_type": kinds,
        "layer_norm_epsilon": file.optional_number(&rms).or_else(|| file.number(&other)),
        "mlp_bias": (0..kinds.len()).any(|layer| file.has(&format!("blk.{layer}.ffn_up.bias"))),
    });
    let experts = file.experts().map_or(Value::Null, |_| {
        let own = json!({
            "moe_shared_expert_intermediate_size": file.count("expert_shared_feed_forward_length"),
            "moe_latent_size": file.optional_count("moe_latent_size").filter(|&size| size > 0),
        });
        joined([own, file.deepseek()])
    });
    file.hybrid(joined([keys, MAMBA.gguf(file, &kinds), experts]))
}

model! {
    /// The whole network, from token ids `[B, S]` to logits over the vocabulary.
    pub NemotronH<T: Float>(Mamba2Config) {
        dims {
            V = vocab_size, D = hidden_size, L = num_hidden_layers,
            K = num_key_value_heads, E = head_dim or 1,
            // The sizes of Mamba-2, as in `Mamba2`.
            N = mamba_heads, W = mamba_groups, R = N / W, U = state_size, O = mamba_head_dim,
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
                    Kind::Mlp => layer.feed_forward(x, false),
                    Kind::Experts => layer.feed_forward(x, true),
                };
            }
            self.norm(x)
        }
    }

    /// A layer with a norm and one of four kinds of blocks.
    pub Layer {
        norm: RmsNorm[D](eps = rms_norm_eps, style = wide),
        attention: Attention<T> at "mixer",
        mamba: Mamba2<T> at "mixer",
        mlp: UngatedMlp<T> at "mixer",
        experts: UngatedExperts<T> at "mixer",

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            x + self.attention.forward(self.norm(x), at, kv)
        }

        fn recur(x: T[B, S, D], at: Position, scan: &mut Recurrent<F32>, conv: &mut Recurrent<T>) -> T[B, S, D] {
            x + self.mamba.forward(self.norm(x), at, scan, conv)
        }

        fn feed_forward(x: T[B, S, D], sparse: bool) -> T[B, S, D] {
            let normed = self.norm(x);
            x + if sparse { self.experts.forward(normed) } else { self.mlp.forward(normed) }
        }
    }
}

/// In `layers_block_type`.
const KINDS: KindNames<Kind> = &[
    (Kind::Mamba, &["mamba", "linear_attention"]),
    (Kind::Attention, &["attention", "full_attention"]),
    (Kind::Mlp, &["mlp"]),
    (Kind::Experts, &["moe"]),
];

/// Lists the letter of each kind of block in the key `hybrid_override_pattern`.
const LETTERS: KindNames<Kind> =
    &[(Kind::Mamba, &["M"]), (Kind::Attention, &["*"]), (Kind::Mlp, &["-"]), (Kind::Experts, &["E"])];

/// For training or other implementations.
const IGNORED: &[&str] = key_names![
    attention_bias chunk_size expand hidden_dropout mamba_proj_bias mamba_ssm_cache_dtype
    moe_shared_expert_overlap mtp_hybrid_override_pattern mtp_layers_block_type n_shared_experts
    norm_eps num_logits_to_keep num_nextn_predict_layers partial_rotary_factor rescale_prenorm_residual
    residual_in_fp32 rope_parameters rope_theta time_step_floor time_step_limit time_step_max
    time_step_rank use_mamba_kernels
];

pub(crate) fn read(keys: &Keys) -> Mamba2Config {
    keys.ignore(IGNORED);
    keys.ignore(experts::IGNORED);
    keys.one_of("mlp_hidden_act", &["relu2"]);
    keys.one_of("mamba_hidden_act", &["silu"]);
    // HF transformers always stores a separate head matrix.
    keys.always("tie_word_embeddings", false);
    if let Some(found) = keys.get("sliding_window") {
        keys.refuse("sliding_window", found, "null");
    }
    let kinds = kinds(keys);
    let defaults = Defaults {
        hidden_act: &[],
        sizes: Some([131_072, 4096, 21_504, kinds.len(), 32]),
        num_key_value_heads: Some(8),
        head_dim: Some(128),
        norm_key: "layer_norm_epsilon",
        rms_norm_eps: 1e-5,
        ..Defaults::new(4096)
    };
    let llama = LlamaConfig::with_rope(keys, defaults, |_, _| RopeParameters::plain(1e4));
    if llama.num_hidden_layers != kinds.len() {
        let expected = format!("{}, the layers that the list of kinds has", kinds.len());
        keys.refuse("num_hidden_layers", llama.num_hidden_layers, expected);
    }
    let llama = LlamaConfig { mlp_bias: keys.flag("mlp_bias", false), ..llama };
    let count = |key, default| keys.optional_count(key).unwrap_or(default);
    let experts = ExpertsConfig {
        latent_size: keys.optional_count("moe_latent_size"),
        shared_intermediate_size: Some(count("moe_shared_expert_intermediate_size", 7688)),
        sparse: kinds.iter().map(|kind| *kind == Kind::Experts).collect(),
        ..experts::deepseek(keys, llama, [8, 2, 7688], ([1, 1], 1.0, 0))
    };
    let mamba = MAMBA.read(keys, (experts, kinds), |_| count("mamba_head_dim", 64));
    Mamba2Config { least_step: keys.number_or("time_step_min", 0.001), ..mamba }
}

/// By `layers_block_type`, or the letters of `hybrid_override_pattern`.
fn kinds(keys: &Keys) -> Vec<Kind> {
    let named = |names: &Value| hybrid::named(names.as_array()?, KINDS);
    let lettered = |pattern: &Value| {
        let letters: Vec<Value> = pattern.as_str()?.chars().map(|letter| letter.to_string().into()).collect();
        hybrid::named(&letters, LETTERS)
    };
    let (key, value, kinds) = match (keys.get("layers_block_type"), keys.get("hybrid_override_pattern")) {
        (Some(names), _) => ("layers_block_type", names, named(names)),
        (None, Some(pattern)) => ("hybrid_override_pattern", pattern, lettered(pattern)),
        (None, None) => return vec![Kind::Mamba, Kind::Experts, Kind::Attention, Kind::Mlp],
    };
    kinds.filter(|kinds| (1..=limits::LAYERS).contains(&kinds.len())).unwrap_or_else(|| {
        let expected = "`mamba`, `attention`, `mlp` or `moe` for each layer, or one of the letters M*-E";
        keys.refuse(key, value, expected);
        vec![Kind::Mlp]
    })
}
