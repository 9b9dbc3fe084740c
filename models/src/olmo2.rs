//! OLMo 2: "2 OLMo 2 Furious" (2024), §3.1. Field names follow the names in the Hugging Face checkpoint
//! (`modeling_olmo2.py`). The network differs from Llama in the norms. Norms follow attention and the
//! feed-forward network. Attention has a norm over all query heads and a norm over all key heads.

use dsl::nn::{Attend, Kv, attend};
use dsl::{Float, WeightStyle, model};
use serde_json::json;

use crate::config::Keys;
use crate::decoder::{AttentionBlock, Decoder, DecoderConfig, Defaults, LlamaConfig, Norm};
use crate::family::{Family, GgufFamily, presets};
use crate::llama::Mlp;

/// The whole network. Norms multiply by the weight before they round (`Olmo2RMSNorm`).
pub type Olmo2<T> = Decoder<T, Layer<T>, Wide>;

pub(crate) const FAMILY: Family = Family {
    about: "norms after attention and after the feed-forward network",
    gguf: Some(GgufFamily {
        config: |file| file.llama(json!({ "attention_bias": file.is_biased("attn_q") })),
        ..GgufFamily::llama("olmo2")
    }),
    presets: presets!("olmo-2-1124-7b": "allenai/OLMo-2-1124-7B"),
    ..Family::of(&["Olmo2ForCausalLM"], &["Olmo2Model"], &["olmo2"])
};

model! {
    /// Normalizes the outputs of attention and feed-forward network, and not their inputs.
    pub Layer<T: Float>(LlamaConfig): AttentionBlock<T> {
        dims {
            D = hidden_size,
            H = num_attention_heads, K = num_key_value_heads, G = H / K, E = head_dim or D / H,
        }

        self_attn: Attention,
        post_attention_layernorm: RmsNorm[D](eps = rms_norm_eps, style = wide),
        mlp: Mlp<T>,
        post_feedforward_layernorm: RmsNorm[D](eps = rms_norm_eps, style = wide),

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let x = x + self.post_attention_layernorm(self.self_attn(x, at, kv));
            x + self.post_feedforward_layernorm(self.mlp.forward(x))
        }
    }

    /// Attention with norms over the features of all heads together (`Olmo2Attention`).
    pub Attention {
        q_proj: Linear[D -> K, G, E](bias if attention_bias),
        k_proj: Linear[D -> K, E](bias if attention_bias),
        v_proj: Linear[D -> K, E](bias if attention_bias),
        q_norm: RmsNorm[K, G, E](eps = rms_norm_eps, style = wide),
        k_norm: RmsNorm[K, E](eps = rms_norm_eps, style = wide),
        o_proj: Linear[K, G, E -> D](bias if attention_bias),

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let q = at.rope(self.q_norm(self.q_proj(x))); // [B, S, K, G, E]
            let (k, v) = kv.append(at.rope(self.k_norm(self.k_proj(x))), self.v_proj(x), at); // [B, K, N, E]
            self.o_proj(attend(q, k, v, at))
        }
    }
}

/// The configuration of a network whose last norm multiplies by the weight in f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Wide(LlamaConfig);

descends!(Wide from 0: LlamaConfig);

impl DecoderConfig for Wide {
    const NORM: Norm = Norm::Rms(WeightStyle::Wide);
}

impl From<LlamaConfig> for Wide {
    fn from(config: LlamaConfig) -> Self {
        Self(config)
    }
}

pub(crate) fn read(keys: &Keys) -> LlamaConfig {
    let defaults = Defaults { rms_norm_eps: 1e-5, ..Defaults::new(2048) };
    let attention_bias = keys.flag("attention_bias", false);
    LlamaConfig { attention_bias, ..LlamaConfig::shared(keys, defaults) }
}
