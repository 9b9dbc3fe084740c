//! ERNIE 4.5, dense: Baidu, "ERNIE 4.5 Technical Report" (2025). Field names follow the names in
//! the Hugging Face checkpoint (`modeling_ernie4_5.py`). The network differs from Llama in the
//! rotary embedding, which rotates pairs of neighbouring features and computes in f32.

use dsl::nn::{Attend, Kv, attend};
use dsl::{Float, model};
use serde_json::json;

use crate::config::Keys;
use crate::decoder::{AttentionBlock, Decoder, Defaults, LlamaConfig};
use crate::family::{Family, GgufFamily, presets};
use crate::llama::Layer;
use crate::rope::RopeDefaults;

/// The whole ERNIE 4.5 network, from token ids to logits.
pub type Ernie45<T> = Decoder<T, Layer<T, Attention<T>>>;

pub(crate) const FAMILY: Family = Family {
    about: "rotary embedding that rotates pairs of neighbouring features",
    gguf: Some(GgufFamily {
        config: |file| file.llama(json!({ "use_bias": file.is_biased("attn_q") })),
        ..GgufFamily::llama("ernie4_5")
    }),
    presets: presets!("ernie-4.5-0.3b": "baidu/ERNIE-4.5-0.3B-PT"),
    ..Family::of(&["Ernie4_5ForCausalLM"], &["Ernie4_5Model"], &["ernie4_5"])
};

model! {
    /// Llama's attention, with rotations of features 2i and 2i + 1 (`apply_rotary_pos_emb`).
    pub Attention<T: Float>(LlamaConfig): AttentionBlock<T> {
        dims {
            D = hidden_size,
            H = num_attention_heads, K = num_key_value_heads, G = H / K, E = head_dim or D / H,
        }

        q_proj: Linear[D -> K, G, E](bias if attention_bias),
        k_proj: Linear[D -> K, E](bias if attention_bias),
        v_proj: Linear[D -> K, E](bias if attention_bias),
        o_proj: Linear[K, G, E -> D](bias if attention_bias),

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let at = at.clone().interleaved();
            let q = at.rope(self.q_proj(x)); // [B, S, K, G, E]
            let (k, v) = kv.append(at.rope(self.k_proj(x)), self.v_proj(x), &at); // [B, K, N, E]
            self.o_proj(attend(q, k, v, &at))
        }
    }
}

/// With and without experts. `sizes` are defaults, as in [`Defaults::sizes`].
pub(crate) fn shared(keys: &Keys, sizes: [usize; 5], defaults: Defaults) -> LlamaConfig {
    let bias = keys.flag("use_bias", false);
    let defaults = Defaults { sizes: Some(sizes), rms_norm_eps: 1e-5, tie_word_embeddings: true, ..defaults };
    LlamaConfig {
        attention_bias: bias,
        attention_out_bias: bias,
        mlp_bias: bias,
        ..LlamaConfig::shared(keys, defaults)
    }
}

pub(crate) fn rope() -> RopeDefaults {
    RopeDefaults { theta: 5e5, ..RopeDefaults::new(131_072) }
}

pub(crate) fn read(keys: &Keys) -> LlamaConfig {
    let defaults = Defaults { num_key_value_heads: Some(2), head_dim: Some(128), ..Defaults::of(rope()) };
    shared(keys, [103_424, 1024, 3072, 18, 16], defaults)
}
