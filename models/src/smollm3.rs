//! SmolLM3: Hugging Face, "SmolLM3: smol, multilingual, long-context reasoner" (2025); names as in the HF checkpoint
//! (`modeling_smollm3.py`). A Llama some of whose layers have no rotary embedding. (SmolLM and SmolLM2 are Llamas.)

use dsl::nn::{Attend, Cache, Position};
use dsl::{Float, model};

use crate::config::{ConfigError, Keys};
use crate::llama::{self, Defaults, LlamaConfig};
use crate::rope::RopeDefaults;

model! {
    /// The whole network: `[B, S]` token ids to logits over the vocabulary.
    pub SmolLm3<T: Float>(SmolLm3Config) {
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

    /// Embedding, layers, final norm. Some layers see no positions: "NoPE" (Yang et al., "RoPE to NoPE and Back Again",
    /// 2025).
    pub Model {
        embed_tokens: Embedding[V, D],
        layers: [llama::Layer<T>; L],
        norm: RmsNorm[D](eps = rms_norm_eps),

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let rope = self.config.rope.frequencies(self.dim(E), cache.context);
            let rotary = Attend::rotary(at, S, tokens.extent(S), &rope, cache.context);
            let plain = Attend::causal(at, S);
            let mut x = self.embed_tokens(tokens);
            for (i, (layer, kv)) in self.layers.iter().zip(&mut cache.layers).enumerate() {
                let at = if self.config.has_rope(i) { &rotary } else { &plain };
                x = layer.forward(x, &at.clone().windowed(self.config.window(i)), kv);
            }
            self.norm(x)
        }
    }
}

/// `config.json` of a SmolLM3 (`configuration_smollm3.py`).
#[derive(Clone, Debug, PartialEq)]
pub struct SmolLm3Config {
    /// What it shares with Llama.
    pub llama: LlamaConfig,
    /// Which layers have a rotary embedding.
    pub rotary: Vec<bool>,
    /// How many positions each layer sees, if not all.
    pub windows: Vec<Option<usize>>,
}

descends!(SmolLm3Config from llama: LlamaConfig);

impl SmolLm3Config {
    /// Reads `config.json`. Defaults are those of `SmolLM3Config` in transformers. `allowed` keys may be there
    /// although nothing reads them.
    ///
    /// # Errors
    /// All keys that are missing, unknown or unusable.
    pub fn read(keys: Keys, allowed: &[String]) -> Result<Self, ConfigError> {
        keys.one_of("hidden_act", &["silu"]);
        let rope = RopeDefaults { theta: 2e6, ..RopeDefaults::new(32_768) };
        let (num_key_value_heads, tie_word_embeddings) = (Some(4), true);
        let defaults = Defaults { num_key_value_heads, tie_word_embeddings, rope, ..Defaults::new(32_768) };
        let llama = LlamaConfig {
            attention_bias: keys.flag("attention_bias", false),
            mlp_bias: keys.flag("mlp_bias", false),
            ..LlamaConfig::shared(&keys, defaults)
        };
        let rotary = rotary(&keys, llama.num_hidden_layers);
        let (used, window) = (keys.flag("use_sliding_window", false), keys.optional_count("sliding_window"));
        let windows = keys.windows(llama.num_hidden_layers, window, |layer| {
            used && window.is_some() && !rotary.get(layer).copied().unwrap_or(true)
        });
        // The published checkpoint has two keys that transformers does not read.
        keys.finish(&[llama::IGNORED, &["max_window_layers", "pretraining_tp"]].concat(), allowed)?;
        Ok(Self { llama, rotary, windows })
    }

    /// Whether a layer has a rotary embedding.
    fn has_rope(&self, layer: usize) -> bool {
        self.rotary.get(layer).copied().unwrap_or(true)
    }

    /// How many positions a layer sees, if not all.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.windows.get(layer).copied().flatten()
    }
}

/// `no_rope_layers`, which says 1 where there **is** a rotary embedding; or all layers but each
/// `no_rope_layer_interval`-th have one.
fn rotary(keys: &Keys, layers: usize) -> Vec<bool> {
    let interval = keys.optional_count("no_rope_layer_interval").unwrap_or(4);
    let by_interval = || (1..=layers).map(|layer| layer % interval != 0).collect();
    let Some(value) = keys.get("no_rope_layers") else { return by_interval() };
    let bit = |item: &serde_json::Value| match item.as_u64() {
        Some(0) => Some(false),
        Some(1) => Some(true),
        _ => None,
    };
    match value.as_array().and_then(|items| items.iter().map(bit).collect::<Option<Vec<bool>>>()) {
        Some(bits) if bits.len() >= layers => bits,
        _ => {
            keys.refuse("no_rope_layers", value, format!("a list of 0 or 1 for each of {layers} layers"));
            by_interval()
        }
    }
}
