//! Llama 3: "The Llama 3 Herd of Models" (2024), §3.2; names as in the HF checkpoint (`modeling_llama.py`).

use std::path::Path;

use bake::Ignorable;
use dsl::nn::{Attend, Cache, Kv, Position, attend, silu};
use dsl::{Float, model};
use ops::ElementType;

use crate::config::{ConfigError, Keys};
use crate::rope::{RopeDefaults, RopeParameters};

model! {
    /// The whole network: `[B, S]` token ids to logits over the vocabulary.
    pub Llama<T: Float>(LlamaConfig) {
        dims {
            V = vocab_size, D = hidden_size, F = intermediate_size, L = num_hidden_layers,
            H = num_attention_heads, K = num_key_value_heads, G = H / K, E = head_dim or D / H,
        }
        cache { L of [K, E] }

        model: Model,
        lm_head: Linear[D -> V] = tied(model.embed_tokens) if tie_word_embeddings,

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            self.model(tokens, at, cache)
        }
        fn logits(x: T[.., D]) -> f32[.., V] {
            self.lm_head(x).to()
        }
    }

    /// Embedding, layers, final norm.
    pub Model {
        embed_tokens: Embedding[V, D],
        layers: [Layer; L],
        norm: RmsNorm[D](eps = rms_norm_eps),

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let rope = self.config.rope.frequencies(self.dim(E), cache.context);
            let at = Attend::rotary(at, S, tokens.extent(S), &rope, cache.context);
            let mut x = self.embed_tokens(tokens);
            for (layer, kv) in self.layers.iter().zip(&mut cache.layers) {
                x = layer.forward(x, &at, kv);
            }
            self.norm(x)
        }
    }

    /// Attention and feed-forward network, each behind a norm and beside a residual.
    pub Layer {
        input_layernorm: RmsNorm[D](eps = rms_norm_eps),
        self_attn: Attention,
        post_attention_layernorm: RmsNorm[D](eps = rms_norm_eps),
        mlp: Mlp,

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let x = x + self.self_attn(self.input_layernorm(x), at, kv);
            x + self.mlp(self.post_attention_layernorm(x))
        }
    }

    /// Grouped-query attention: K heads of keys and values, G query heads for each.
    pub Attention {
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
    pub Mlp {
        gate_proj: Linear[D -> F](bias if mlp_bias),
        up_proj: Linear[D -> F](bias if mlp_bias),
        down_proj: Linear[F -> D](bias if mlp_bias),

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        }
    }
}

/// `config.json` of a Llama (`configuration_llama.py`).
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

/// Keys that say nothing about the network's function.
pub(crate) const IGNORED: &[&str] = &[
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "bos_token_id",
    "eos_token_id",
    "initializer_range",
    "is_llama_config",
    "model_type",
    "pad_token_id",
    "transformers_version",
    "use_cache",
];

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
    /// Reads `config.json`. Defaults are those of `LlamaConfig` in transformers. `allowed` keys may be there
    /// although nothing reads them.
    ///
    /// # Errors
    /// All keys that are missing, unknown or unusable.
    pub fn read(keys: Keys, allowed: &[String]) -> Result<Self, ConfigError> {
        keys.one_of("hidden_act", &["silu"]);
        if let Some(found) = keys.optional_count("pretraining_tp").filter(|&tp| tp != 1) {
            keys.refuse("pretraining_tp", found, "1");
        }
        // Published with SmolLM2; transformers rotates halves whatever it says.
        keys.always("rope_interleaved", false);
        let config = Self {
            attention_bias: keys.flag("attention_bias", false),
            mlp_bias: keys.flag("mlp_bias", false),
            ..Self::shared(&keys, Defaults::new(2048))
        };
        keys.finish(IGNORED, allowed)?;
        Ok(config)
    }

    /// Reads what all families that descend from Llama say: all but biases.
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

    /// Reads the file at `path`; see [`LlamaConfig::read`].
    ///
    /// # Errors
    /// See [`LlamaConfig::read`].
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        Self::read(Keys::read(path)?, &[])
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
