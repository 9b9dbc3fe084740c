//! Llama 3: "The Llama 3 Herd of Models" (2024), §3.2; names as in the HF checkpoint (`modeling_llama.py`).

use bake::Ignorable;
use dsl::nn::{Attend, Kv, attend, silu};
use dsl::{Float, model};
use ops::ElementType;

use crate::config::Keys;
use crate::decoder::{Attends, Decoder, Maps};
use crate::rope::{RopeDefaults, RopeParameters};

/// The whole network.
pub type Llama<T> = Decoder<T, Layer<T>>;

model! {
    /// Attention and feed-forward network, each behind a norm and beside a residual.
    pub Layer<T: Float, A: Attends<T> = Attention<T>, M: Maps<T> = Mlp<T>>(LlamaConfig): Attends<T> {
        dims {
            D = hidden_size, F = intermediate_size,
            H = num_attention_heads, K = num_key_value_heads, G = H / K, E = head_dim or D / H,
        }

        input_layernorm: RmsNorm[D](eps = rms_norm_eps),
        self_attn: A,
        post_attention_layernorm: RmsNorm[D](eps = rms_norm_eps),
        mlp: M,

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let x = x + self.self_attn.forward(self.input_layernorm(x), at, kv);
            x + self.mlp.forward(self.post_attention_layernorm(x))
        }
    }

    /// Grouped-query attention: K heads of keys and values, G query heads for each.
    pub Attention<T: Float>: Attends<T> {
        q_proj: Linear[D -> K, G, E](bias if attention_bias),
        k_proj: Linear[D -> K, E](bias if attention_bias),
        v_proj: Linear[D -> K, E](bias if attention_bias),
        o_proj: Linear[K, G, E -> D](bias if attention_bias),

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let q = at.rope(self.q_proj(x)); // [B, S, K, G, E]
            let (k, v) = kv.append(at.rope(self.k_proj(x)), self.v_proj(x), at); // [B, K, N, E]
            self.o_proj(attend(q, k, v, at))
        }
    }

    /// SwiGLU (Shazeer, "GLU Variants Improve Transformer", 2020).
    pub Mlp<T: Float>: Maps<T> {
        gate_proj: Linear[D -> F](bias if mlp_bias),
        up_proj: Linear[D -> F](bias if mlp_bias),
        down_proj: Linear[F -> D](bias if mlp_bias),

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        }
    }
}

/// What the configurations of Llama and of its descendants say, most of which are this and no more.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
    /// Token ids.
    pub vocab_size: usize,
    /// Features of the residual stream.
    pub hidden_size: usize,
    /// Features of the feed-forward network.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key-value heads.
    pub num_key_value_heads: usize,
    /// Features of a head; `hidden_size / num_attention_heads` if not said.
    pub head_dim: Option<usize>,
    /// Added to the mean square in norms.
    pub rms_norm_eps: f64,
    /// Rotary embedding.
    pub rope: RopeParameters,
    /// Which layers rotate queries and keys; all do if the list is empty.
    pub rotary: Vec<bool>,
    /// How many positions each layer sees, if not all; all see all if the list is empty.
    pub windows: Vec<Option<usize>>,
    /// Whether `lm_head` is the embedding table.
    pub tie_word_embeddings: bool,
    /// Whether the attention's linear layers have biases.
    pub attention_bias: bool,
    /// Whether the feed-forward network's linear layers have biases.
    pub mlp_bias: bool,
    /// The longest sequence.
    pub max_position_embeddings: usize,
    /// The element type the checkpoint was made for.
    pub element: Option<ElementType>,
}

/// Reads the `config.json` of a Llama. Defaults are those of `LlamaConfig` in transformers.
pub(crate) fn read(keys: &Keys) -> LlamaConfig {
    keys.one_of("hidden_act", &["silu"]);
    if let Some(found) = keys.optional_count("pretraining_tp").filter(|&tp| tp != 1) {
        keys.refuse("pretraining_tp", found, "1");
    }
    // Published with SmolLM2; transformers rotates halves whatever it says.
    keys.always("rope_interleaved", false);
    LlamaConfig {
        attention_bias: keys.flag("attention_bias", false),
        mlp_bias: keys.flag("mlp_bias", false),
        ..LlamaConfig::shared(keys, Defaults::new(2048))
    }
}

/// What a family that descends from Llama takes where `config.json` is silent.
pub(crate) struct Defaults {
    /// `None`: as many as query heads.
    pub num_key_value_heads: Option<usize>,
    pub head_dim: Option<usize>,
    pub rms_norm_eps: f64,
    pub tie_word_embeddings: bool,
    pub rope: RopeDefaults,
}

impl Defaults {
    /// Those of Llama, for sequences of this length.
    pub fn new(max_position_embeddings: usize) -> Self {
        let rope = RopeDefaults::new(max_position_embeddings);
        Self {
            num_key_value_heads: None,
            head_dim: None,
            rms_norm_eps: 1e-6,
            tie_word_embeddings: false,
            rope,
        }
    }
}

impl LlamaConfig {
    /// Reads what all families that descend from Llama say: all but biases, and what differs between layers.
    pub(crate) fn shared(keys: &Keys, defaults: Defaults) -> Self {
        let num_attention_heads = keys.count("num_attention_heads");
        let num_key_value_heads = keys.nullable_count("num_key_value_heads", defaults.num_key_value_heads);
        let max_position_embeddings = keys.optional_count("max_position_embeddings");
        let max_position_embeddings =
            max_position_embeddings.unwrap_or(defaults.rope.max_position_embeddings);
        let rope = RopeDefaults { max_position_embeddings, ..defaults.rope };
        let config = Self {
            vocab_size: keys.count("vocab_size"),
            hidden_size: keys.count("hidden_size"),
            intermediate_size: keys.count("intermediate_size"),
            num_hidden_layers: keys.count("num_hidden_layers"),
            num_attention_heads,
            num_key_value_heads: num_key_value_heads.unwrap_or(num_attention_heads),
            head_dim: keys.optional_count("head_dim").or(defaults.head_dim),
            rms_norm_eps: keys.optional_number("rms_norm_eps").unwrap_or(defaults.rms_norm_eps),
            rope: RopeParameters::read(keys, &rope),
            rotary: Vec::new(),
            windows: Vec::new(),
            tie_word_embeddings: keys.flag("tie_word_embeddings", defaults.tie_word_embeddings),
            attention_bias: false,
            mlp_bias: false,
            max_position_embeddings,
            element: keys.element_type(),
        };
        let features = config.head_dim.unwrap_or(config.hidden_size / config.num_attention_heads);
        config.rope.check(keys, features);
        config
    }

    /// How many positions a layer sees, if not all.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.windows.get(layer).copied().flatten()
    }

    /// How a layer looks, where `rotary` looks at all positions with the rotary embedding.
    pub(crate) fn look<T: Float>(&self, layer: usize, rotary: &Attend<T>) -> Attend<T> {
        let at = match self.rotary.get(layer) {
            Some(false) => Attend::causal(rotary.at, rotary.queries),
            _ => rotary.clone(),
        };
        at.windowed(self.window(layer))
    }

    /// How keys of a checkpoint begin, and how the parameters of the model do: they begin the same way.
    pub fn prefixes(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Tensors that a checkpoint may have beside the parameters.
    pub fn ignorable(&self) -> Vec<Ignorable> {
        let mut ignorable = vec![Ignorable::Suffix(".rotary_emb.inv_freq")];
        if self.tie_word_embeddings {
            let (key, other) = ("lm_head.weight".into(), "model.embed_tokens.weight".into());
            ignorable.push(Ignorable::EqualTo { key, other });
        }
        ignorable
    }
}
