//! Qwen3: "Qwen3 Technical Report" (2025), §2. Field names follow the names in the Hugging Face
//! checkpoint (`modeling_qwen3.py`). The network differs from Llama in the norms of each query head
//! and key head. Layers can have a sliding window as in Qwen2.

use dsl::nn::{Attend, Kv, attend};
use dsl::{Float, model};
use serde_json::json;

use crate::config::Keys;
use crate::decoder::{AttentionBlock, Decoder, Defaults, LlamaConfig};
use crate::family::{Family, GgufFamily, presets};
use crate::llama::Layer;
use crate::qwen2::windows;

/// The whole Qwen3 network, from token ids to logits.
pub type Qwen3<T> = Decoder<T, Layer<T, Attention<T>>>;

pub(crate) const FAMILY: Family = Family {
    about: "norms on queries and keys",
    gguf: Some(GgufFamily {
        config: |file| file.llama(json!({ "attention_bias": file.is_biased("attn_q") })),
        ..GgufFamily::llama("qwen3")
    }),
    presets: presets!("qwen3-0.6b": "Qwen/Qwen3-0.6B", "qwen3-8b": "Qwen/Qwen3-8B"),
    ..Family::of(&["Qwen3ForCausalLM"], &["Qwen3Model"], &["qwen3"])
};

model! {
    /// Norms over each query and key head, with a shared weight (`Qwen3Attention`).
    pub Attention<T: Float>(LlamaConfig): AttentionBlock<T> {
        dims {
            D = hidden_size,
            H = num_attention_heads, K = num_key_value_heads, G = H / K, E = head_dim or D / H,
        }

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

pub(crate) fn read(keys: &Keys) -> LlamaConfig {
    let defaults = Defaults { num_key_value_heads: Some(32), head_dim: Some(128), ..Defaults::new(32_768) };
    let attention_bias = keys.flag("attention_bias", false);
    let llama = LlamaConfig::shared(keys, defaults);
    LlamaConfig { attention_bias, windows: windows(keys, llama.num_hidden_layers), ..llama }
}
