//! Qwen2 and Qwen2.5: "Qwen2 Technical Report" (2024), §2.2; names as in the HF checkpoint (`modeling_qwen2.py`). A
//! Llama with biases on queries, keys and values, and a sliding window in its upper layers if it is asked for.

use dsl::nn::{Attend, Cache, Kv, Position, attend};
use dsl::{Float, model};

use crate::config::{ConfigError, Keys};
use crate::llama::{self, Defaults, LlamaConfig};

model! {
    /// The whole network: `[B, S]` token ids to logits over the vocabulary.
    pub Qwen2<T: Float>(Qwen2Config) {
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

    /// The biases are not a matter of configuration; the output has none (`Qwen2Attention`).
    pub Attention {
        q_proj: Linear[D -> K, G, E](bias),
        k_proj: Linear[D -> K, E](bias),
        v_proj: Linear[D -> K, E](bias),
        o_proj: Linear[K, G, E -> D],

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let q = at.rope(self.q_proj(x)); // [B, S, K, G, E]
            let (k, v) = kv.append(at.rope(self.k_proj(x)), self.v_proj(x), at); // [B, K, N, E]
            self.o_proj(attend(q, k, v, at))
        }
    }
}

/// `config.json` of a Qwen2 (`configuration_qwen2.py`).
#[derive(Clone, Debug, PartialEq)]
pub struct Qwen2Config {
    /// What it shares with Llama.
    pub llama: LlamaConfig,
    /// How many positions each layer sees, if not all.
    pub windows: Vec<Option<usize>>,
}

descends!(Qwen2Config from llama: LlamaConfig);

impl Qwen2Config {
    /// Reads `config.json`. Defaults are those of `Qwen2Config` in transformers. `allowed` keys may be there although
    /// nothing reads them.
    ///
    /// # Errors
    /// All keys that are missing, unknown or unusable.
    pub fn read(keys: Keys, allowed: &[String]) -> Result<Self, ConfigError> {
        keys.one_of("hidden_act", &["silu"]);
        keys.always("use_mrope", false);
        let defaults = Defaults { num_key_value_heads: Some(32), ..Defaults::new(32_768) };
        let llama = LlamaConfig::shared(&keys, defaults);
        let windows = windows(&keys, llama.num_hidden_layers);
        keys.finish(llama::IGNORED, allowed)?;
        Ok(Self { llama, windows })
    }

    /// How many positions a layer sees, if not all.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.windows.get(layer).copied().flatten()
    }
}

/// The window of each layer: from `max_window_layers` on, if `use_sliding_window` says that there is any.
pub(crate) fn windows(keys: &Keys, layers: usize) -> Vec<Option<usize>> {
    let (used, window) =
        (keys.flag("use_sliding_window", false), keys.nullable_count("sliding_window", Some(4096)));
    let window = window.filter(|_| used);
    let full = keys.optional_integer("max_window_layers").unwrap_or(28);
    keys.windows(layers, window, |layer| window.is_some() && layer >= full)
}
