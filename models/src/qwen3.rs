//! Qwen3: "Qwen3 Technical Report" (2025), §2; names as in the HF checkpoint (`modeling_qwen3.py`). A Llama that
//! normalizes queries and keys head by head, with windows as in Qwen2.

use dsl::nn::{Attend, Cache, Kv, Position, attend};
use dsl::{Float, model};

use crate::config::{ConfigError, Keys};
use crate::llama::{self, Defaults, LlamaConfig};
use crate::qwen2::windows;

model! {
    /// The whole network: `[B, S]` token ids to logits over the vocabulary.
    pub Qwen3<T: Float>(Qwen3Config) {
        dims {
            V = vocab_size, D = hidden_size, L = num_hidden_layers,
            H = num_attention_heads, K = num_key_value_heads, G = H / K, E = head_dim or D / H,
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
        layers: [Layer; L],
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

    /// As in Llama, around another attention.
    pub Layer {
        input_layernorm: RmsNorm[D](eps = rms_norm_eps),
        self_attn: Attention,
        post_attention_layernorm: RmsNorm[D](eps = rms_norm_eps),
        mlp: llama::Mlp<T>,

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let x = x + self.self_attn(self.input_layernorm(x), at, kv);
            x + self.mlp.forward(self.post_attention_layernorm(x))
        }
    }

    /// The norms are over a head's features, all heads with one weight (`Qwen3Attention`).
    pub Attention {
        q_proj: Linear[D -> K, G, E](bias if attention_bias),
        k_proj: Linear[D -> K, E](bias if attention_bias),
        v_proj: Linear[D -> K, E](bias if attention_bias),
        q_norm: RmsNorm[E](eps = rms_norm_eps),
        k_norm: RmsNorm[E](eps = rms_norm_eps),
        o_proj: Linear[K, G, E -> D](bias if attention_bias),

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let q = at.rope(self.q_norm(self.q_proj(x))); // [B, S, K, G, E]
            let (k, v) = kv.append(at.rope(self.k_norm(self.k_proj(x))), self.v_proj(x), at); // [B, K, N, E]
            self.o_proj(attend(q, k, v, at))
        }
    }
}

/// `config.json` of a Qwen3 (`configuration_qwen3.py`).
#[derive(Clone, Debug, PartialEq)]
pub struct Qwen3Config {
    /// What it shares with Llama.
    pub llama: LlamaConfig,
    /// How many positions each layer sees, if not all.
    pub windows: Vec<Option<usize>>,
}

descends!(Qwen3Config from llama: LlamaConfig);

impl Qwen3Config {
    /// Reads `config.json`. Defaults are those of `Qwen3Config` in transformers. `allowed` keys may be there although
    /// nothing reads them.
    ///
    /// # Errors
    /// All keys that are missing, unknown or unusable.
    pub fn read(keys: Keys, allowed: &[String]) -> Result<Self, ConfigError> {
        keys.one_of("hidden_act", &["silu"]);
        let defaults =
            Defaults { num_key_value_heads: Some(32), head_dim: Some(128), ..Defaults::new(32_768) };
        let attention_bias = keys.flag("attention_bias", false);
        let llama = LlamaConfig { attention_bias, ..LlamaConfig::shared(&keys, defaults) };
        let windows = windows(&keys, llama.num_hidden_layers);
        keys.finish(llama::IGNORED, allowed)?;
        Ok(Self { llama, windows })
    }

    /// How many positions a layer sees, if not all.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.windows.get(layer).copied().flatten()
    }
}
