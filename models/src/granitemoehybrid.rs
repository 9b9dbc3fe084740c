//! The Granite 4 hybrid network. Field names follow the names in the published checkpoints
//! (`modeling_granitemoehybrid.py`). Most layers contain a Mamba-2 block (Dao and Gu, "Transformers
//! are SSMs", 2024, §7), and the other layers contain attention. Every layer has a feed-forward
//! network. In the larger Granite 4 networks, every layer also has experts.

use dsl::nn::{Attend, Cache, Kv, Position, Recurrent, silu};
use dsl::{F32, Float, Project, Tensor, model};
use irpa::StoredOrder;
use serde_json::{Value, json};

use crate::config::Keys;
use crate::decoder::{DecoderConfig, LlamaConfig};
use crate::experts::{self, Experts, ExpertsConfig, Routing, Scores};
use crate::family::{Family, GgufFamily, Metadata, interleaved, joined, presets};
use crate::granite::{self, GraniteConfig};
use crate::hybrid::{self, alternates};
use crate::llama::Attention;
use crate::mamba2::{self, Mamba2, Mamba2Config};

pub(crate) const FAMILY: Family = Family {
    about: "Mamba-2 in most layers, experts beside a feed-forward network, Granite's factors",
    stacks: &[
        ("shared_mlp.input_linear.weight", &["shared_mlp.gate_linear.weight", "shared_mlp.up_linear.weight"]),
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
        parts: &[GGUF_PARTS, mamba2::GGUF_PARTS],
        arranged: |part, end, heads, tensor| match mamba2::stored(part, end, tensor) {
            StoredOrder::Same => interleaved(part, end, heads, tensor),
            order => order,
        },
        ..GgufFamily::llama("granitehybrid")
    }),
    presets: presets!("granite-4.0-h-350m": "ibm-granite/granite-4.0-h-350m"),
    ..Family::of(&["GraniteMoeHybridForCausalLM"], &["GraniteMoeHybridModel"], &["granitemoehybrid"])
};

/// The names of a layer's tensors in GGUF files and in the network. The name of the shared
/// feed-forward network is `ffn` in GGUF files without experts, and `shexp` in GGUF files with
/// experts.
const GGUF_PARTS: &[(&str, &str)] = &[
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "shared_mlp.gate_linear"),
    ("ffn_up", "shared_mlp.up_linear"),
    ("ffn_down", "shared_mlp.output_linear"),
    ("ffn_gate_shexp", "shared_mlp.gate_linear"),
    ("ffn_up_shexp", "shared_mlp.up_linear"),
    ("ffn_down_shexp", "shared_mlp.output_linear"),
    ("ffn_gate_inp", "block_sparse_moe.gate"),
    ("ffn_gate_exps", "block_sparse_moe.experts.gate_proj"),
    ("ffn_up_exps", "block_sparse_moe.experts.up_proj"),
    ("ffn_down_exps", "block_sparse_moe.experts.down_proj"),
];

/// The `config.json` that corresponds to a GGUF file (`LLM_ARCH_GRANITE_HYBRID` in llama.cpp).
fn gguf(file: &Metadata<'_>) -> Value {
    let (layers, width) = (file.layers(), file.count("embedding_length"));
    let attention = file.each_layer("attention.head_count_kv", layers);
    let kinds: Vec<&str> =
        attention.iter().map(|heads| if *heads > 0 { "attention" } else { "mamba" }).collect();
    let recurs = attention.iter().position(|heads| *heads == 0);
    let rotates = file.flag("rope.scaling.finetuned").unwrap_or(true);
    let experts = file.experts();
    let shared = if experts.is_some() { "expert_shared_feed_forward_length" } else { "feed_forward_length" };
    let keys = json!({
        "hidden_size": width,
        "intermediate_size": file.count("feed_forward_length"),
        "shared_intermediate_size": file.count(shared),
        "num_hidden_layers": layers,
        "num_attention_heads": file.count("attention.head_count"),
        "num_key_value_heads": attention.iter().max(),
        "rms_norm_eps": file.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": file.count("context_length"),
        "layer_types": kinds,
        "position_embedding_type": if rotates { "rope" } else { "nope" },
        "num_local_experts": experts.unwrap_or(0),
        "num_experts_per_tok": experts.and_then(|_| file.count("expert_used_count")),
        "attention_bias": file.is_biased("attn_q"),
    });
    let mamba = recurs.map_or(Value::Null, |layer| {
        let inner = file.count("ssm.inner_size");
        json!({
            "mamba_n_heads": file.count("ssm.time_step_rank"),
            "mamba_n_groups": file.count("ssm.group_count"),
            "mamba_d_state": file.count("ssm.state_size"),
            "mamba_d_conv": file.count("ssm.conv_kernel"),
            "mamba_expand": inner.zip(width).map(|(inner, width)| inner / width),
            "mamba_conv_bias": file.has(&format!("blk.{layer}.ssm_conv1d.bias")),
            "mamba_proj_bias": file.has(&format!("blk.{layer}.ssm_in.bias")),
        })
    });
    file.shared(joined([keys, mamba, granite::factors(file), file.rope(None)]))
}

model! {
    /// The whole network, from token ids `[B, S]` to logits over the vocabulary.
    pub GraniteMoeHybrid<T: Float>(GraniteMoeHybridConfig) {
        dims {
            V = vocab_size, D = hidden_size, L = num_hidden_layers,
            H = num_attention_heads, K = num_key_value_heads, E = head_dim or D / H,
            // The number of features of the feed-forward network.
            A = shared_intermediate_size,
            // The sizes of Mamba-2, as in `Mamba2`.
            N = mamba_n_heads, W = mamba_n_groups, R = N / W, U = mamba_d_state, O = mamba_d_head,
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
            self.config.granite.logits(self.lm_head(x)).to()
        }
    }

    /// The network without the output head: the embedding, the layers and the final norm.
    pub BaseModel {
        embed_tokens: Embedding[V, D],
        layers: [Layer; L],
        norm: RmsNorm[D](eps = rms_norm_eps),

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let rope = self.config.rope.frequencies(self.dim(E), cache.context);
            let attention = match self.config.rotary {
                true => Attend::rotary(at, S, tokens.extent(S), &rope, cache.context),
                false => Attend::causal(at, S),
            };
            let granite = &self.config.granite;
            let mut x = granite.embedded(self.embed_tokens(tokens));
            for (i, layer) in self.layers.iter().enumerate() {
                x = match self.config.attends(i) {
                    true => layer.forward(x, &granite.attention(i, &attention), cache.state(i)),
                    false => {
                        let (scan, conv) = cache.pair(i, ["scan", "conv"]);
                        layer.recur(x, at, scan, conv)
                    }
                };
            }
            self.norm(x)
        }
    }

    /// A layer with attention or Mamba-2, and then a feed-forward network. The layer multiplies the
    /// output of each block by a factor, and adds the product to the residual.
    pub Layer {
        input_layernorm: RmsNorm[D](eps = rms_norm_eps),
        self_attn: Attention<T>,
        mamba: Mamba2<T>,
        post_attention_layernorm: RmsNorm[D](eps = rms_norm_eps),
        shared_mlp: Mlp,
        block_sparse_moe: Experts<T>,

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let y = self.self_attn.forward(self.input_layernorm(x), at, kv);
            self.feed_forward(x + scaled(y, self.config.residual_multiplier))
        }

        fn recur(x: T[B, S, D], at: Position, scan: &mut Recurrent<F32>, conv: &mut Recurrent<T>) -> T[B, S, D] {
            let y = self.mamba.forward(self.input_layernorm(x), at, scan, conv);
            self.feed_forward(x + scaled(y, self.config.residual_multiplier))
        }

        fn feed_forward(x: T[B, S, D]) -> T[B, S, D] {
            let normed = self.post_attention_layernorm(x);
            let y = match self.config.has_experts {
                true => self.block_sparse_moe.forward(normed) + self.shared_mlp(normed),
                false => self.shared_mlp(normed),
            };
            x + scaled(y, self.config.residual_multiplier)
        }
    }

    /// A SwiGLU feed-forward network that computes the gate and the features in one matmul.
    pub Mlp {
        gate_linear: Linear[D -> A],
        up_linear: Linear[D -> A],
        output_linear: Linear[A -> D],

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            self.output_linear(silu(self.gate_linear(x)) * self.up_linear(x))
        }
    }
}

/// Multiplies `x` by a number. As in PyTorch, the program does not round the number to T before the
/// multiplication.
#[track_caller]
fn scaled<T: Float>(x: Tensor<T>, factor: f64) -> Tensor<T> {
    (x.to::<F32>() * factor).to()
}

/// The values in the `config.json` of a Granite 4 hybrid model. The fields have the names of the
/// keys in `GraniteMoeHybridConfig` of HF transformers.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "most fields are keys")]
pub struct GraniteMoeHybridConfig {
    pub granite: GraniteConfig,
    /// Whether each layer has attention. A layer without attention has a Mamba-2 block.
    pub attention: Vec<bool>,
    /// Whether the attention layers have a rotary embedding.
    pub rotary: bool,
    pub shared_intermediate_size: usize,
    pub has_experts: bool,
    /// The number of experts. The value is at least 1, even if the network has no experts.
    pub num_local_experts: usize,
    pub num_experts_per_tok: usize,
    pub mamba_n_heads: usize,
    pub mamba_n_groups: usize,
    pub mamba_d_state: usize,
    pub mamba_d_head: usize,
    pub mamba_conv_bias: bool,
    pub mamba_proj_bias: bool,
    /// The number of earlier positions that the causal convolution reads.
    pub conv_memory: usize,
}

descends!(GraniteMoeHybridConfig from granite: GraniteConfig, through granite.llama: LlamaConfig);

impl Project<Mamba2Config> for GraniteMoeHybridConfig {
    fn project(&self) -> Mamba2Config {
        Mamba2Config {
            hidden_size: self.hidden_size,
            heads: self.mamba_n_heads,
            groups: self.mamba_n_groups,
            state_size: self.mamba_d_state,
            head_dim: self.mamba_d_head,
            conv_memory: self.conv_memory,
            conv_bias: self.mamba_conv_bias,
            proj_bias: self.mamba_proj_bias,
            epsilon: self.rms_norm_eps,
            least_step: 0.0,
        }
    }
}

impl Project<ExpertsConfig> for GraniteMoeHybridConfig {
    fn project(&self) -> ExpertsConfig {
        ExpertsConfig {
            num_experts: self.num_local_experts,
            num_experts_per_tok: self.num_experts_per_tok,
            ..ExpertsConfig::like_llama(self.llama.clone(), Routing::normalized(Scores::Softmax))
        }
    }
}

alternates!(GraniteMoeHybridConfig);

/// Configuration keys that do not affect the results: the number of tokens in a chunk, and a key
/// for training.
const IGNORED: &[&str] = &["mamba_chunk_size", "init_method"];

/// Reads the `config.json` of a Granite 4 hybrid model. Missing configuration keys get the defaults
/// of `GraniteMoeHybridConfig` in HF transformers.
pub(crate) fn read(keys: &Keys) -> GraniteMoeHybridConfig {
    keys.ignore(IGNORED);
    keys.ignore(experts::IGNORED);
    let count = |key, default| keys.optional_count(key).unwrap_or(default);
    let granite = granite::read(keys);
    let layers = granite.num_hidden_layers;
    let listed = keys.get("layer_types").and_then(Value::as_array);
    // The name of the key in published files, and the name in files that HF transformers 5 saves.
    let kinds =
        match listed.is_some_and(|types| types.iter().any(|kind| kind == "mamba" || kind == "attention")) {
            true => ["attention", "mamba"],
            false => ["full_attention", "linear_attention"],
        };
    let attention = hybrid::attention(keys, layers, kinds).unwrap_or_else(|| vec![false; layers]);
    keys.one_of("position_embedding_type", &["rope", "nope"]);
    let rotary = keys.optional_text("position_embedding_type").as_deref() == Some("rope");
    let num_experts = keys.optional_integer("num_local_experts").unwrap_or(8);
    // Published networks without experts choose 0 experts.
    let chosen = match num_experts {
        0 => keys.optional_integer("num_experts_per_tok").unwrap_or(1).max(1),
        _ => experts::chosen(keys, "num_experts_per_tok", 2, num_experts),
    };
    let heads = count("mamba_n_heads", 128);
    let features = count("mamba_expand", 2) * granite.hidden_size / heads;
    let is_other = |given: &&Value| **given != "auto" && **given != features;
    if let Some(found) = keys.get("mamba_d_head").filter(is_other) {
        keys.refuse("mamba_d_head", found, format!("{features}, from the hidden size and the heads"));
    }
    if let Some(limit) = keys.get("time_step_limit")
        && (limit.get(0).and_then(Value::as_f64) != Some(0.0) || limit.get(1).is_some_and(Value::is_number))
    {
        keys.refuse("time_step_limit", limit, "[0, Infinity]");
    }
    GraniteMoeHybridConfig {
        granite,
        attention,
        rotary,
        shared_intermediate_size: count("shared_intermediate_size", 1024),
        has_experts: num_experts > 0,
        num_local_experts: num_experts.max(1),
        num_experts_per_tok: chosen.min(num_experts.max(1)),
        mamba_n_heads: heads,
        mamba_n_groups: count("mamba_n_groups", 1),
        mamba_d_state: count("mamba_d_state", 256),
        mamba_d_head: features,
        mamba_conv_bias: keys.flag("mamba_conv_bias", true),
        mamba_proj_bias: keys.flag("mamba_proj_bias", false),
        conv_memory: hybrid::conv_memory(keys, "mamba_d_conv", 4),
    }
}
