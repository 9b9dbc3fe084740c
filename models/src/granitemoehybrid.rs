//! The Granite 4 hybrid network. Field names follow the names in the published checkpoints
//! (`modeling_granitemoehybrid.py`). Most layers contain a Mamba-2 block (Dao and Gu, "Transformers
//! are SSMs", 2024, §7), and the other layers contain attention. Every layer has a feed-forward
//! network. In the larger Granite 4 networks, every layer also has experts.

use dsl::nn::{Attend, Cache, Kv, Position, Recurrent};
use dsl::{F32, Float, Tensor, model};
use irpa::StoredOrder;
use serde_json::{Value, json};

use crate::config::Keys;
use crate::decoder::LlamaConfig;
use crate::experts::{self, Experts, ExpertsConfig, Routing, Scores};
use crate::family::{Family, GgufFamily, Metadata, interleaved, joined, presets};
use crate::granite::{self, Factors};
use crate::hybrid::{self, KindNames};
use crate::llama::{self, Attention, Mlp};
use crate::mamba2::{self, Kind, Mamba2, Mamba2Config, Mamba2Keys};

pub(crate) const FAMILY: Family = Family {
    about: "Mamba-2 in most layers, experts beside a feed-forward network, Granite's factors",
    stacks: &[
        ("shared_mlp.input_linear.weight", &["shared_mlp.gate_proj.weight", "shared_mlp.up_proj.weight"]),
        ("shared_mlp.output_linear.weight", &["shared_mlp.down_proj.weight"]),
        ("block_sparse_moe.router.layer.weight", &["block_sparse_moe.gate.weight"]),
        (
            "block_sparse_moe.input_linear.weight",
            &["block_sparse_moe.experts.*.gate_proj.weight", "block_sparse_moe.experts.*.up_proj.weight"],
        ),
        ("block_sparse_moe.output_linear.weight", &["block_sparse_moe.experts.*.down_proj.weight"]),
        ("experts.gate_proj.weight", &["experts.*.gate_proj.weight"]),
        ("experts.up_proj.weight", &["experts.*.up_proj.weight"]),
        ("experts.down_proj.weight", &["experts.*.down_proj.weight"]),
    ],
    gguf: Some(GgufFamily {
        config: gguf,
        keys: granite::FACTORS,
        parts: &[mamba2::GGUF_PARTS, experts::GGUF_PARTS],
        // The shared feed-forward network is the only one in GGUF files without experts.
        blocks: &[
            ("mlp.gate", "block_sparse_moe.gate"),
            ("mlp.experts", "block_sparse_moe.experts"),
            ("mlp.shared_experts", "shared_mlp"),
            ("mlp", "shared_mlp"),
        ],
        arranged: |part, end, heads, tensor| match mamba2::stored(part, end, tensor) {
            StoredOrder::Same => interleaved(part, end, heads, tensor),
            order => order,
        },
        ..GgufFamily::llama("granitehybrid")
    }),
    presets: presets!("granite-4.0-h-350m": "ibm-granite/granite-4.0-h-350m"),
    ..Family::of(&["GraniteMoeHybridForCausalLM"], &["GraniteMoeHybridModel"], &["granitemoehybrid"])
};

/// The keys of Mamba-2, with the defaults of `GraniteMoeHybridConfig` in HF transformers.
const MAMBA: Mamba2Keys = Mamba2Keys {
    heads: ("mamba_n_heads", 128),
    groups: ("mamba_n_groups", 1),
    state_size: ("mamba_d_state", 256),
    head_dim: "mamba_d_head",
    taps: "mamba_d_conv",
    conv_bias: "mamba_conv_bias",
    proj_bias: "mamba_proj_bias",
};

/// The `config.json` that corresponds to a GGUF file (`LLM_ARCH_GRANITE_HYBRID` in llama.cpp).
fn gguf(file: &Metadata<'_>) -> Value {
    let kind = |heads| if heads > 0 { "attention" } else { "mamba" };
    let kinds: Vec<&str> = file.key_value_heads().into_iter().map(kind).collect();
    let rotates = file.flag("rope.scaling.finetuned").unwrap_or(true);
    let experts = file.experts();
    let shared = if experts.is_some() { "expert_shared_feed_forward_length" } else { "feed_forward_length" };
    let width = file.count("embedding_length");
    let keys = json!({
        "intermediate_size": file.count("feed_forward_length"),
        "shared_intermediate_size": file.count(shared),
        "rms_norm_eps": file.number("attention.layer_norm_rms_epsilon"),
        "layer_types": kinds,
        "position_embedding_type": if rotates { "rope" } else { "nope" },
        "num_local_experts": experts.unwrap_or(0),
        "num_experts_per_tok": experts.and_then(|_| file.count("expert_used_count")),
        "mamba_expand": width.and_then(|width| file.optional_count("ssm.inner_size")?.checked_div(width)),
    });
    let more = [granite::factors(file), file.attention_biases(), file.rope(None)];
    file.hybrid(joined([keys, MAMBA.gguf(file, &kinds), joined(more)]))
}

model! {
    /// The whole network, from token ids `[B, S]` to logits over the vocabulary.
    pub GraniteMoeHybrid<T: Float>(GraniteMoeHybridConfig) {
        dims {
            V = vocab_size, D = hidden_size, L = num_hidden_layers,
            H = num_attention_heads, K = num_key_value_heads, E = head_dim or D / H,
            // The sizes of Mamba-2, as in `Mamba2`.
            N = mamba_heads, W = mamba_groups, R = N / W, U = state_size, O = mamba_head_dim,
            Y = N * O, Q = W * U, P = Y + Q + Q, M = conv_memory,
        }
        cache {
            L of [K, E] if attends,
            L of scan: Recurrent<F32>[W, R, U, O] if recurs,
            L of conv: Recurrent[M, P] if recurs,
        }
        shard { K, V over model; X over expert; B over data }

        model: BaseModel,
        lm_head: Linear[D -> V] = tied(model.embed_tokens) if tie_word_embeddings,

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            self.model(tokens, at, cache)
        }
        fn logits(x: T[.., D]) -> f32[.., V] {
            (self.lm_head(x) / self.config.factors.logits_scaling).to()
        }
    }

    /// The network without the output head: the embedding, the layers and the final norm.
    pub BaseModel {
        embed_tokens: Embedding[V, D],
        layers: [Layer; L],
        norm: RmsNorm[D](eps = rms_norm_eps),

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let rope = self.config.rope.frequencies(self.dim(E), cache.context);
            let attention = if self.config.rotary { Attend::rotary(at, S, tokens.extent(S), &rope, cache.context) } else { Attend::causal(at, S) };
            let attention = attention.scaled(self.config.factors.attention_multiplier);
            let mut x = self.embed_tokens(tokens) * self.config.factors.embedding_multiplier;
            for (i, layer) in self.layers.iter().enumerate() {
                x = if self.config.attends(i) { layer.forward(x, &attention, cache.state(i)) } else {
                        let (scan, conv) = cache.pair(i, ["scan", "conv"]);
                        layer.recur(x, at, scan, conv)
                    };
            }
            self.norm(x)
        }
    }

    /// Attention or Mamba-2, then a feed-forward network, each times a factor.
    pub Layer {
        input_layernorm: RmsNorm[D](eps = rms_norm_eps),
        self_attn: Attention<T>,
        mamba: Mamba2<T>,
        post_attention_layernorm: RmsNorm[D](eps = rms_norm_eps),
        shared_mlp: Mlp<T>,
        block_sparse_moe: Experts<T>,

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let y = self.self_attn.forward(self.input_layernorm(x), at, kv);
            self.feed_forward(x + scaled(y, self.config.factors.residual_multiplier))
        }

        fn recur(x: T[B, S, D], at: Position, scan: &mut Recurrent<F32>, conv: &mut Recurrent<T>) -> T[B, S, D] {
            let y = self.mamba.forward(self.input_layernorm(x), at, scan, conv);
            self.feed_forward(x + scaled(y, self.config.factors.residual_multiplier))
        }

        fn feed_forward(x: T[B, S, D]) -> T[B, S, D] {
            let normed = self.post_attention_layernorm(x);
            let y = if self.config.sparse.contains(&true) { self.block_sparse_moe.forward(normed) + self.shared_mlp.forward(normed) } else { self.shared_mlp.forward(normed) };
            x + scaled(y, self.config.factors.residual_multiplier)
        }
    }
}

/// As in PyTorch, the number is not rounded to T before.
#[track_caller]
fn scaled<T: Float>(x: Tensor<T>, factor: f64) -> Tensor<T> {
    (x.to::<F32>() * factor).to()
}

/// The values in the `config.json` of a Granite 4 hybrid model.
#[derive(Clone, Debug, PartialEq)]
pub struct GraniteMoeHybridConfig {
    /// The configuration keys that the network shares with other networks with Mamba-2.
    pub mamba: Mamba2Config,
    /// The factors by which Granite differs from Llama.
    pub factors: Factors,
    /// Whether the attention layers have a rotary embedding.
    pub rotary: bool,
}

descends!(
    GraniteMoeHybridConfig from mamba: Mamba2Config,
    through mamba.experts: ExpertsConfig, through mamba.experts.llama: LlamaConfig
);

/// The names of each kind of layer in published files, and in files that HF transformers 5 saves.
const KINDS: KindNames<Kind> =
    &[(Kind::Attention, &["attention", "full_attention"]), (Kind::Mamba, &["mamba", "linear_attention"])];

/// The tokens in a chunk, and a key for training.
const IGNORED: &[&str] = &["mamba_chunk_size", "init_method"];

pub(crate) fn read(keys: &Keys) -> GraniteMoeHybridConfig {
    keys.ignore(IGNORED);
    keys.ignore(experts::IGNORED);
    let count = |key, default| keys.optional_count(key).unwrap_or(default);
    let (llama, factors) = (llama::read(keys), Factors::read(keys));
    let (layers, width) = (llama.num_hidden_layers, llama.hidden_size);
    let kinds = hybrid::kinds(keys, layers, KINDS).unwrap_or_else(|| vec![Kind::Mamba; layers]);
    keys.one_of("position_embedding_type", &["rope", "nope"]);
    let rotary = keys.optional_text("position_embedding_type").as_deref() == Some("rope");
    let num_experts = keys.optional_integer("num_local_experts").unwrap_or(8);
    // Published networks without experts choose 0 experts.
    let chosen = match num_experts {
        0 => keys.optional_integer("num_experts_per_tok").unwrap_or(1).max(1),
        _ => experts::chosen(keys, "num_experts_per_tok", 2, num_experts),
    };
    // The key `intermediate_size` contains the size of experts. Each layer also has a shared network.
    let intermediate_size = count("shared_intermediate_size", 1024);
    let shared = LlamaConfig { intermediate_size, mlp_bias: false, ..llama.clone() };
    let experts = ExpertsConfig {
        num_experts: num_experts.max(1),
        num_experts_per_tok: chosen.min(num_experts.max(1)),
        sparse: vec![num_experts > 0; layers],
        keys: ["num_local_experts", "intermediate_size"],
        moe_intermediate_size: llama.intermediate_size,
        ..ExpertsConfig::like_llama(shared, Routing::normalized(Scores::Softmax))
    };
    if let Some(limit) = keys.get("time_step_limit")
        && (limit.get(0).and_then(Value::as_f64) != Some(0.0) || limit.get(1).is_some_and(Value::is_number))
    {
        keys.refuse("time_step_limit", limit, "[0, Infinity]");
    }
    let head_dim = |heads| {
        let features = count("mamba_expand", 2) * width / heads;
        let is_other = |given: &&Value| **given != "auto" && **given != features;
        if let Some(found) = keys.get("mamba_d_head").filter(is_other) {
            keys.refuse("mamba_d_head", found, format!("{features}, from the hidden size and the heads"));
        }
        features
    };
    GraniteMoeHybridConfig { mamba: MAMBA.read(keys, (experts, kinds), head_dim), factors, rotary }
}
