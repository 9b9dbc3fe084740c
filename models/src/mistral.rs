//! Mistral: Jiang et al., "Mistral 7B" (2023), §2; names as in the HF checkpoint (`modeling_mistral.py`). A Llama whose
//! layers all look through a sliding window.

use dsl::nn::{Attend, Cache, Position};
use dsl::{Float, model};

use crate::config::{ConfigError, Keys};
use crate::llama::{self, Defaults, LlamaConfig};

model! {
    /// The whole network: `[B, S]` token ids to logits over the vocabulary.
    pub Mistral<T: Float>(MistralConfig) {
        dims {
            V = vocab_size, D = hidden_size, L = num_hidden_layers,
            H = num_attention_heads, K = num_key_value_heads, E = head_dim or D / H,
        }
        cache { L of [K, E] within window }

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
        layers: [llama::Layer<T>; L],
        norm: RmsNorm[D](eps = rms_norm_eps),

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let rope = self.config.rope.frequencies(self.dim(E), cache.context);
            let at = Attend::rotary(at, S, tokens.extent(S), &rope, cache.context);
            let mut x = self.embed_tokens(tokens);
            for (i, (layer, kv)) in self.layers.iter().zip(&mut cache.layers).enumerate() {
                x = layer.forward(x, &at.clone().windowed(self.config.window(i)), kv);
            }
            self.norm(x)
        }
    }
}

/// `config.json` of a Mistral (`configuration_mistral.py`).
#[derive(Clone, Debug, PartialEq)]
pub struct MistralConfig {
    /// What it shares with Llama.
    pub llama: LlamaConfig,
    /// Positions that a query sees, its own included, if not all.
    pub sliding_window: Option<usize>,
}

descends!(MistralConfig from llama: LlamaConfig);

impl MistralConfig {
    /// Reads `config.json`. Defaults are those of `MistralConfig` in transformers. `allowed` keys may be there
    /// although nothing reads them.
    ///
    /// # Errors
    /// All keys that are missing, unknown or unusable.
    pub fn read(keys: Keys, allowed: &[String]) -> Result<Self, ConfigError> {
        keys.one_of("hidden_act", &["silu"]);
        let defaults = Defaults { num_key_value_heads: Some(8), ..Defaults::new(131_072) };
        let config = Self {
            llama: LlamaConfig::shared(&keys, defaults),
            sliding_window: keys.nullable_count("sliding_window", Some(4096)),
        };
        keys.finish(llama::IGNORED, allowed)?;
        Ok(config)
    }

    /// How many positions a layer sees, if not all.
    pub fn window(&self, _layer: usize) -> Option<usize> {
        self.sliding_window
    }
}
