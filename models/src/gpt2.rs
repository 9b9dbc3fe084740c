//! GPT-2: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), §2.3. Field names
//! follow the names in the Hugging Face checkpoint (`modeling_gpt2.py`). The network has learned position
//! embeddings and layer norms. The first axis of the stored matrices is the axis of the inputs (`Conv1D`).

use dsl::nn::{Attend, Cache, Kv, Position, attend, gelu, gelu_tanh, positions_within, relu, silu};
use dsl::{Float, model};
use irpa::StoredOrder;
use ops::ElementType;
use serde_json::json;
use trace::Ignorable;

use crate::config::Keys;
use crate::family::{Family, GgufFamily, presets};
use crate::shape_check::DeclaredSize;

pub(crate) const FAMILY: Family = Family {
    about: "learned positions, layer norms, and weights stored with the input axis first",
    gguf: Some(GgufFamily {
        config: |file| {
            file.shared(json!({
                "n_embd": file.count("embedding_length"),
                "n_head": file.count("attention.head_count"),
                "n_layer": file.count("block_count"),
                "n_positions": file.count("context_length"),
                "n_inner": file.optional_count("feed_forward_length"),
                "layer_norm_epsilon": file.number("attention.layer_norm_epsilon"),
            }))
        },
        keys: &[
            ("n_layer", "block_count"),
            ("n_embd", "embedding_length"),
            ("n_positions", "context_length"),
            ("n_inner", "feed_forward_length"),
            ("n_head", "attention.head_count"),
            ("layer_norm_epsilon", "attention.layer_norm_epsilon"),
        ],
        parts: &[&[
            ("attn_norm", "ln_1"),
            ("attn_qkv", "attn.c_attn"),
            ("attn_output", "attn.c_proj"),
            ("ffn_norm", "ln_2"),
            ("ffn_up", "mlp.c_fc"),
            ("ffn_down", "mlp.c_proj"),
        ]],
        outside: &[("token_embd", "wte"), ("position_embd", "wpe"), ("output_norm", "ln_f")],
        layers: "h",
        arranged: |part, _, _, tensor| match part {
            "attn_qkv" | "attn_output" | "ffn_up" | "ffn_down" if tensor.shape.len() == 2 => {
                tensor.shape.reverse();
                StoredOrder::Transposed
            }
            _ => StoredOrder::Same,
        },
        ..GgufFamily::llama("gpt2")
    }),
    // The keys of the first published files have no prefix. The keys of files that HF transformers
    // saves have a prefix.
    prefixes: &[("transformer.", "")],
    embedding: "wte.weight",
    // Some files contain causal masks as tensors.
    ignorable: &[Ignorable::Suffix(".attn.bias"), Ignorable::Suffix(".attn.masked_bias")],
    presets: presets!("gpt2": "openai-community/gpt2"),
    ..Family::of(&["GPT2LMHeadModel"], &["GPT2Model"], &["gpt2"])
};

model! {
    /// The whole network, from token ids `[B, S]` to logits over the vocabulary.
    pub Gpt2<T: Float>(Gpt2Config) {
        dims {
            V = vocab_size, N = max_position_embeddings, D = hidden_size, F = intermediate_size,
            L = num_hidden_layers, H = num_attention_heads, E = D / H,
            // P is the number of query, key and value heads together.
            P = 3 * H,
        }
        cache { L of [H, E] }
        shard { H, F over model; B over data }

        wte: Embedding[V, D],
        wpe: Embedding[N, D],
        h: [Layer; L],
        ln_f: LayerNorm[D](eps = layer_norm_epsilon),
        lm_head: Linear[D -> V] = tied(wte) if tie_word_embeddings,

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            positions_within(self.dims.dim(N), cache.context);
            let mut x = self.wte(tokens) + self.wpe(at.positions(S, tokens.extent(S)));
            let at = Attend::causal(at, S);
            for (i, layer) in self.h.iter().enumerate() {
                let at = at.clone().scaled(self.config.scale(i, self.dim(E)));
                x = layer.forward(x, &at, cache.state(i));
            }
            self.ln_f(x)
        }
        fn logits(x: T[.., D]) -> f32[.., V] {
            self.lm_head(x).to()
        }
    }

    /// Norms before attention and feed-forward network, each added to the residual.
    pub Layer {
        ln_1: LayerNorm[D](eps = layer_norm_epsilon),
        attn: Attention,
        ln_2: LayerNorm[D](eps = layer_norm_epsilon),
        mlp: Mlp,

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let x = x + self.attn(self.ln_1(x), at, kv);
            x + self.mlp(self.ln_2(x))
        }
    }

    /// Attention with one matrix that contains the projections for queries, keys and values in this order.
    pub Attention {
        c_attn: Linear[D -> P, E](transposed, bias),
        c_proj: Linear[H, E -> D](transposed, bias),

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let [q, k, v] = self.c_attn(x).split(P, [self.dim(H); 3]).map(|part| part.rename(P, H)); // [B, S, H, E]
            let (k, v) = kv.append(k, v, at); // [B, H, N, E]
            self.c_proj(attend(q, k, v, at))
        }
    }

    /// Two linear layers with an activation between them.
    pub Mlp {
        c_fc: Linear[D -> F](transposed, bias),
        c_proj: Linear[F -> D](transposed, bias),

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            let x = self.c_fc(x);
            self.c_proj(match self.config.activation {
                Activation::Gelu => gelu(x),
                Activation::GeluTanh => gelu_tanh(x),
                Activation::Relu => relu(x),
                Activation::Silu => silu(x),
            })
        }
    }
}

/// The activation function in the feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// The function [`gelu`], with the exact error function.
    Gelu,
    /// The function [`gelu_tanh`], an approximation of GELU.
    GeluTanh,
    /// The function [`relu`], which sets negative numbers to 0.
    Relu,
    /// The function [`silu`], which is x · logistic(x).
    Silu,
}

/// `configuration_gpt2.py`, with the field names of other families.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpt2Config {
    /// The number of token ids in the vocabulary.
    pub vocab_size: usize,
    /// The number of learned position embeddings, which limits the number of tokens in a sequence.
    pub max_position_embeddings: usize,
    /// The number of features of the residual stream.
    pub hidden_size: usize,
    /// The number of features between the linear layers of the feed-forward network.
    pub intermediate_size: usize,
    /// The number of layers of the network.
    pub num_hidden_layers: usize,
    /// The number of attention heads.
    pub num_attention_heads: usize,
    /// The activation function in the feed-forward network.
    pub activation: Activation,
    /// The ε that norms add to the variance.
    pub layer_norm_epsilon: f64,
    /// Whether attention divides the scores by the square root of the number of a head's features.
    pub scale_attn_weights: bool,
    /// Whether attention divides the scores of layer i by i + 1.
    pub scale_attn_by_inverse_layer_idx: bool,
    /// Whether the output head shares its weight with the embedding table.
    pub tie_word_embeddings: bool,
    /// The element type of the checkpoint's weights, if the configuration contains this type.
    pub element: Option<ElementType>,
}

/// Keys without effect that Llama lacks. `reorder_and_upcast_attn` selects a method of the same result.
const IGNORED: &[&str] = key_names![
    attn_pdrop embd_pdrop n_ctx reorder_and_upcast_attn resid_pdrop summary_activation
    summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
];

pub(crate) fn read(keys: &Keys) -> Gpt2Config {
    keys.ignore(IGNORED);
    let count = |key, default| keys.optional_count(key).unwrap_or(default);
    let hidden_size = count("n_embd", 768);
    Gpt2Config {
        vocab_size: count("vocab_size", 50_257),
        max_position_embeddings: count("n_positions", 1024),
        hidden_size,
        intermediate_size: count("n_inner", 4 * hidden_size),
        num_hidden_layers: count("n_layer", 12),
        num_attention_heads: count("n_head", 12),
        activation: Gpt2Config::activation(keys),
        layer_norm_epsilon: keys.number_or("layer_norm_epsilon", 1e-5),
        scale_attn_weights: keys.flag("scale_attn_weights", true),
        scale_attn_by_inverse_layer_idx: keys.flag("scale_attn_by_inverse_layer_idx", false),
        tie_word_embeddings: keys.flag("tie_word_embeddings", true),
        element: keys.element_type(),
    }
}

impl Gpt2Config {
    fn activation(keys: &Keys) -> Activation {
        keys.one_of("activation_function", &["gelu_new", "gelu_pytorch_tanh", "gelu", "relu", "silu"]);
        match keys.optional_text("activation_function").as_deref() {
            Some("gelu") => Activation::Gelu,
            Some("relu") => Activation::Relu,
            Some("silu") => Activation::Silu,
            _ => Activation::GeluTanh,
        }
    }

    /// For attention scores; heads have `features` features.
    fn scale(&self, layer: usize, features: usize) -> f64 {
        let root = if self.scale_attn_weights { (features as f64).sqrt() } else { 1.0 };
        let depth = if self.scale_attn_by_inverse_layer_idx { layer + 1 } else { 1 };
        1.0 / (root * depth as f64)
    }

    /// Returns the configured sizes that Tracewright compares with the tensor shapes in the checkpoint.
    pub fn sizes(&self) -> Vec<DeclaredSize> {
        vec![
            DeclaredSize::numbers("n_layer", self.num_hidden_layers, "h."),
            DeclaredSize::extent("vocab_size", self.vocab_size, &[("wte.weight", 0)]),
            DeclaredSize::extent("n_embd", self.hidden_size, &[("wte.weight", 1)]),
            DeclaredSize::extent("n_positions", self.max_position_embeddings, &[("wpe.weight", 0)]),
            DeclaredSize::extent("n_inner", self.intermediate_size, &[("h.*.mlp.c_fc.weight", 1)]),
        ]
    }
}
