//! Llama 3: "The Llama 3 Herd of Models" (2024), §3.2. Field names follow the names in the Hugging
//! Face checkpoint (`modeling_llama.py`).

use dsl::nn::{Attend, Kv, attend, silu};
use dsl::{Float, Project, model};
use serde_json::json;

use crate::config::Keys;
use crate::decoder::{AttentionBlock, Decoder, DecoderConfig, Defaults, FeedForward, LlamaConfig, Plain};
use crate::family::{Family, GgufFamily, interleaved, joined, presets};

/// The whole Llama network, from token ids to logits.
pub type Llama<T> = Decoder<T, Layer<T>>;

pub(crate) const FAMILY: Family = Family {
    about: "Llama 3.x and SmolLM2: llama3 rope scaling, grouped-query attention, tied or separate head, biases",
    gguf: Some(GgufFamily { is: |file| file.experts().or(file.window()).is_none(), ..GGUF }),
    presets: presets!("llama-3.1-8b": "meta-llama/Llama-3.1-8B", "llama-3.1-405b": "meta-llama/Llama-3.1-405B", "llama-3.2-1b": "meta-llama/Llama-3.2-1B", "smollm2-1.7b": "HuggingFaceTB/SmolLM2-1.7B"),
    ..Family::of(&["LlamaForCausalLM"], &["LlamaModel"], &["llama"])
};

pub(crate) const GGUF: GgufFamily = GgufFamily {
    config: |file| {
        let mlp = json!({ "mlp_bias": file.is_biased("ffn_gate") });
        file.llama(joined([file.attention_biases(), mlp]))
    },
    arranged: interleaved,
    ..GgufFamily::llama("llama")
};

model! {
    /// A layer with attention and a feed-forward network, each with a norm and a residual connection.
    pub Layer<T: Float, A: AttentionBlock<T> = Attention<T>, M: FeedForward<T> = Mlp<T>, C: DecoderConfig + Project<A::Config> + Project<M::Config> = Plain>(C): AttentionBlock<T> {
        dims { D = hidden_size }

        input_layernorm: RmsNorm[D](eps = rms_norm_eps),
        self_attn: A,
        post_attention_layernorm: RmsNorm[D](eps = rms_norm_eps),
        mlp: M,

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let x = x + self.self_attn.forward(self.input_layernorm(x), at, kv);
            x + self.mlp.forward(self.post_attention_layernorm(x))
        }
    }
}

model! {
    /// Grouped-query attention with K key-value heads, and with G query heads for each key-value head.
    pub Attention<T: Float>(LlamaConfig): AttentionBlock<T> {
        dims {
            D = hidden_size, F = intermediate_size,
            H = num_attention_heads, K = num_key_value_heads, G = H / K, E = head_dim or D / H,
        }

        q_proj: Linear[D -> K, G, E](bias if attention_bias),
        k_proj: Linear[D -> K, E](bias if attention_bias),
        v_proj: Linear[D -> K, E](bias if attention_bias),
        o_proj: Linear[K, G, E -> D](bias if attention_out_bias),

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let q = at.rope(self.q_proj(x)); // [B, S, K, G, E]
            let (k, v) = kv.append(at.rope(self.k_proj(x)), self.v_proj(x), at); // [B, K, N, E]
            self.o_proj(attend(q, k, v, at))
        }
    }

    /// A SwiGLU feed-forward network (Shazeer, "GLU Variants Improve Transformer", 2020).
    pub Mlp<T: Float>: FeedForward<T> {
        gate_proj: Linear[D -> F](bias if mlp_bias),
        up_proj: Linear[D -> F](bias if mlp_bias),
        down_proj: Linear[F -> D](bias if mlp_bias),

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        }
    }
}

pub(crate) fn read(keys: &Keys) -> LlamaConfig {
    if let Some(found) = keys.optional_count("pretraining_tp").filter(|&tp| tp != 1) {
        keys.refuse("pretraining_tp", found, "1");
    }
    // Published SmolLM2 files contain this key, but HF transformers ignores its value.
    keys.always("rope_interleaved", false);
    let attention_bias = keys.flag("attention_bias", false);
    LlamaConfig {
        attention_bias,
        // Only the converted metadata of a GGUF file contain this key.
        attention_out_bias: keys.flag("attention_out_bias", attention_bias),
        mlp_bias: keys.flag("mlp_bias", false),
        ..LlamaConfig::shared(keys, Defaults::new(2048))
    }
}
