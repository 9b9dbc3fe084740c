//! Qwen2 and Qwen2.5: "Qwen2 Technical Report" (2024), §2.2. Field names follow the names in the Hugging Face
//! checkpoint (`modeling_qwen2.py`). The network differs from Llama in two ways. The linear layers for
//! queries, keys and values have biases. The upper layers can have a sliding window.

use std::sync::Arc;

use dsl::nn::{Attend, Kv, attend};
use dsl::{Float, model};

use crate::config::Keys;
use crate::decoder::{AttentionBlock, Decoder, Defaults, LlamaConfig};
use crate::family::{Family, GgufFamily, presets};
use crate::llama::Layer;

/// The whole Qwen2 or Qwen2.5 network, from token ids to logits.
pub type Qwen2<T> = Decoder<T, Layer<T, Attention<T>>>;

pub(crate) const FAMILY: Family = Family {
    about: "biases on the query, key and value projections",
    gguf: Some(GgufFamily::llama("qwen2")),
    presets: presets!("qwen2-0.5b": "Qwen/Qwen2-0.5B", "qwen2-7b": "Qwen/Qwen2-7B"),
    ..Family::of(&["Qwen2ForCausalLM"], &["Qwen2Model"], &["qwen2"])
};

model! {
    /// Biases for queries, keys and values only (`Qwen2Attention`), whatever the configuration.
    pub Attention<T: Float>(LlamaConfig): AttentionBlock<T> {
        dims {
            D = hidden_size,
            H = num_attention_heads, K = num_key_value_heads, G = H / K, E = head_dim or D / H,
        }

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

pub(crate) fn read(keys: &Keys) -> LlamaConfig {
    keys.always("use_mrope", false);
    let defaults = Defaults { num_key_value_heads: Some(32), ..Defaults::new(32_768) };
    let llama = LlamaConfig::shared(keys, defaults);
    LlamaConfig { windows: windows(keys, llama.num_hidden_layers), ..llama }
}

/// From `max_window_layers` on, if `use_sliding_window`.
pub(crate) fn windows(keys: &Keys, layers: usize) -> Arc<[Option<usize>]> {
    let (used, window) =
        (keys.flag("use_sliding_window", false), keys.nullable_count("sliding_window", Some(4096)));
    let window = window.filter(|_| used);
    let full = keys.optional_integer("max_window_layers").unwrap_or(28);
    keys.windows(layers, window, |layer| window.is_some() && layer >= full)
}
