//! Gemma 2: "Gemma 2: Improving Open Language Models at a Practical Size" (2024), §2; names as in the HF checkpoint
//! (`modeling_gemma2.py`). By what differs from Gemma 3: Llama's attention without norms of queries and keys, one
//! rotary embedding, every other layer looks through a window, and scores are softly bounded too.

use dsl::nn::{Attend, Cache, Kv, Position, gelu_tanh};
use dsl::{Float, Tensor, model};

use crate::config::{ConfigError, Keys};
use crate::gemma3::soft_cap;
use crate::llama::{self, Defaults, LlamaConfig};

model! {
    /// The whole network: `[B, S]` token ids to logits over the vocabulary.
    pub Gemma2<T: Float>(Gemma2Config) {
        dims {
            V = vocab_size, D = hidden_size, F = intermediate_size, L = num_hidden_layers,
            H = num_attention_heads, K = num_key_value_heads, E = head_dim or D / H,
        }
        cache { L of [K, E] within window }

        model: Model,
        lm_head: Linear[D -> V] = tied(model.embed_tokens) if tie_word_embeddings,

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            self.model(tokens, at, cache)
        }
        fn logits(x: T[.., D]) -> f32[.., V] {
            soft_cap(self.lm_head(x), self.config.final_logit_softcapping).to()
        }
    }

    /// Scaled embedding, layers, final norm.
    pub Model {
        embed_tokens: Embedding[V, D],
        layers: [Layer; L],
        norm: RmsNorm[D](eps = rms_norm_eps, style = one_plus),

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let rope = self.config.rope.frequencies(self.dim(E), cache.context);
            let at = Attend::rotary(at, S, tokens.extent(S), &rope, cache.context)
                .scaled(self.config.query_pre_attn_scalar.powf(-0.5))
                .capped(self.config.attn_logit_softcapping);
            let mut x = self.embed_tokens(tokens) * Tensor::scalar((self.dim(D) as f64).sqrt());
            for (i, (layer, kv)) in self.layers.iter().zip(&mut cache.layers).enumerate() {
                x = layer.forward(x, &at.clone().windowed(self.config.window(i)), kv);
            }
            self.norm(x)
        }
    }

    /// Sandwich norms, as in Gemma 3.
    pub Layer {
        input_layernorm: RmsNorm[D](eps = rms_norm_eps, style = one_plus),
        self_attn: llama::Attention<T>,
        post_attention_layernorm: RmsNorm[D](eps = rms_norm_eps, style = one_plus),
        pre_feedforward_layernorm: RmsNorm[D](eps = rms_norm_eps, style = one_plus),
        mlp: Mlp,
        post_feedforward_layernorm: RmsNorm[D](eps = rms_norm_eps, style = one_plus),

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let x = x + self.post_attention_layernorm(self.self_attn.forward(self.input_layernorm(x), at, kv));
            x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        }
    }

    /// GeGLU with the tanh form of GELU.
    pub Mlp {
        gate_proj: Linear[D -> F],
        up_proj: Linear[D -> F],
        down_proj: Linear[F -> D],

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            self.down_proj(gelu_tanh(self.gate_proj(x)) * self.up_proj(x))
        }
    }
}

/// `config.json` of a Gemma 2 (`configuration_gemma2.py`).
#[derive(Clone, Debug, PartialEq)]
pub struct Gemma2Config {
    /// What it shares with Llama.
    pub llama: LlamaConfig,
    /// Scores are divided by its root.
    pub query_pre_attn_scalar: f64,
    /// The bound on the scores.
    pub attn_logit_softcapping: Option<f64>,
    /// The bound on the logits.
    pub final_logit_softcapping: Option<f64>,
    /// How many positions each layer sees, if not all.
    pub windows: Vec<Option<usize>>,
}

descends!(Gemma2Config from llama: LlamaConfig);

impl Gemma2Config {
    /// Reads `config.json`. Defaults are those of `Gemma2Config` in transformers. `allowed` keys may be there although
    /// nothing reads them.
    ///
    /// # Errors
    /// All keys that are missing, unknown or unusable.
    pub fn read(keys: Keys, allowed: &[String]) -> Result<Self, ConfigError> {
        keys.one_of("hidden_activation", &["gelu_pytorch_tanh"]);
        // Published beside it, and not read by transformers: "gelu" stands there too.
        keys.one_of("hidden_act", &["gelu_pytorch_tanh", "gelu"]);
        keys.always("use_bidirectional_attention", false);
        let (num_key_value_heads, head_dim, tie_word_embeddings) = (Some(4), Some(256), true);
        let defaults = Defaults { num_key_value_heads, head_dim, tie_word_embeddings, ..Defaults::new(8192) };
        let attention_bias = keys.flag("attention_bias", false);
        let llama = LlamaConfig { attention_bias, ..LlamaConfig::shared(&keys, defaults) };
        let window = keys.nullable_count("sliding_window", Some(4096));
        let config = Self {
            query_pre_attn_scalar: keys.optional_number("query_pre_attn_scalar").unwrap_or(256.0),
            attn_logit_softcapping: keys.nullable_number("attn_logit_softcapping", Some(50.0)),
            final_logit_softcapping: keys.nullable_number("final_logit_softcapping", Some(30.0)),
            windows: keys.windows(llama.num_hidden_layers, window, |layer| layer % 2 == 0),
            llama,
        };
        // Two keys of the published checkpoints that transformers does not read.
        keys.finish(&[llama::IGNORED, &["cache_implementation", "sliding_window_size"]].concat(), allowed)?;
        Ok(config)
    }

    /// How many positions a layer sees, if not all.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.windows.get(layer).copied().flatten()
    }
}
