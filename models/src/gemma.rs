//! The decoder of Gemma 2 and Gemma 3: "Gemma 3 Technical Report" (2025), §2. Field names follow the
//! Hugging Face checkpoint (`modeling_gemma3.py`).

use dsl::nn::{Attend, Kv, Mask, Position, attend, gelu_tanh};
use dsl::{Float, Tensor, WeightStyle, model};
use files::limits;
use irpa::{GgufValue, StoredOrder};
use serde_json::{Value, json};

use crate::decoder::{AttentionBlock, Decoder, DecoderConfig, FeedForward, LlamaConfig, Norm};
use crate::family::{GgufFamily, Metadata};

/// The whole causal Gemma network, from token ids `[B, S]` to logits over the vocabulary.
pub type Gemma<T, A = Attention<T>> = Decoder<T, Layer<T, A>, GemmaConfig>;

model! {
    /// Norms around attention and feed-forward network, which multiply by 1 + w in f32 and then round
    /// (`Gemma3RMSNorm`).
    pub Layer<T: Float, A: AttentionBlock<T, Config = LlamaConfig> = Attention<T>>(GemmaConfig): AttentionBlock<T> {
        dims { D = hidden_size }

        input_layernorm: RmsNorm[D](eps = rms_norm_eps, style = one_plus),
        self_attn: A,
        post_attention_layernorm: RmsNorm[D](eps = rms_norm_eps, style = one_plus),
        pre_feedforward_layernorm: RmsNorm[D](eps = rms_norm_eps, style = one_plus),
        mlp: Mlp<T>,
        post_feedforward_layernorm: RmsNorm[D](eps = rms_norm_eps, style = one_plus),

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let x = x + self.post_attention_layernorm(self.self_attn.forward(self.input_layernorm(x), at, kv));
            x + self.post_feedforward_layernorm(self.mlp.forward(self.pre_feedforward_layernorm(x)))
        }
    }
}

model! {
    /// Attention that normalizes queries and keys before the rotary embedding.
    pub Attention<T: Float>(LlamaConfig): AttentionBlock<T> {
        dims {
            D = hidden_size, F = intermediate_size,
            H = num_attention_heads, K = num_key_value_heads, G = H / K, E = head_dim or D / H,
        }

        q_proj: Linear[D -> K, G, E](bias if attention_bias),
        k_proj: Linear[D -> K, E](bias if attention_bias),
        v_proj: Linear[D -> K, E](bias if attention_bias),
        q_norm: RmsNorm[E](eps = rms_norm_eps, style = one_plus),
        k_norm: RmsNorm[E](eps = rms_norm_eps, style = one_plus),
        o_proj: Linear[K, G, E -> D](bias if attention_bias),

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let q = at.rope(self.q_norm(self.q_proj(x))); // [B, S, K, G, E]
            let (k, v) = kv.append(at.rope(self.k_norm(self.k_proj(x))), self.v_proj(x), at); // [B, K, N, E]
            self.o_proj(attend(q, k, v, at))
        }
    }

    /// A GeGLU feed-forward network with the tanh approximation of GELU.
    pub Mlp<T: Float>: FeedForward<T> {
        gate_proj: Linear[D -> F],
        up_proj: Linear[D -> F],
        down_proj: Linear[F -> D],

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            self.down_proj(gelu_tanh(self.gate_proj(x)) * self.up_proj(x))
        }
    }
}

/// `bound` · tanh(x / `bound`).
#[track_caller]
pub(crate) fn soft_cap<T: Float>(logits: Tensor<T>, bound: Option<f64>) -> Tensor<T> {
    match bound {
        Some(bound) => (logits / bound).tanh() * bound,
        None => logits,
    }
}

/// The configuration of a Gemma 2 or Gemma 3 model.
#[derive(Clone, Debug, PartialEq)]
pub struct GemmaConfig {
    /// The configuration keys that Gemma shares with Llama.
    pub llama: LlamaConfig,
    /// The number whose square root divides the attention scores.
    pub query_pre_attn_scalar: f64,
    /// The bound of the attention scores' softcap, or `None` if the scores have no bound.
    pub attn_logit_softcapping: Option<f64>,
    /// The bound of the logits' softcap, or `None` if the logits have no bound.
    pub final_logit_softcapping: Option<f64>,
}

descends!(GemmaConfig from llama: LlamaConfig);

impl DecoderConfig for GemmaConfig {
    const NORM: Norm = Norm::Rms(WeightStyle::OnePlus);

    /// Like `Gemma3TextScaledWordEmbedding`, rounds √D to T first: 33.9… becomes 34 in bf16.
    fn embedded<T: Float>(&self, x: Tensor<T>) -> Tensor<T> {
        x * Tensor::scalar((self.hidden_size as f64).sqrt())
    }

    fn attention<T: Float>(&self, layer: usize, rotary: &Attend<T>) -> Attend<T> {
        let scaled = rotary.clone().scaled(self.query_pre_attn_scalar.powf(-0.5));
        scaled.capped(self.attn_logit_softcapping).windowed(self.window(layer))
    }

    /// The vectors of an image, which come in one call, see each other (`blockwise_overlay` in
    /// `masking_utils.py`).
    fn features_mask<T: Float>(&self, at: Position) -> Mask<T> {
        Mask::prefix(at.start + at.count)
    }

    fn logits<T: Float>(&self, x: Tensor<T>) -> Tensor<T> {
        soft_cap(x, self.final_logit_softcapping)
    }
}

pub(crate) const fn gguf(architecture: &'static str) -> GgufFamily {
    GgufFamily {
        keys: &[
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("final_logit_softcapping", "final_logit_softcapping"),
            ("rope_local_base_freq", "rope.freq_base_swa"),
        ],
        parts: &[&[("ffn_norm", "pre_feedforward_layernorm")]],
        arranged: |part, end, _, _| {
            if part.ends_with("norm") && end == "weight" { StoredOrder::PlusOne } else { StoredOrder::Same }
        },
        fits_f16: false,
        ..GgufFamily::llama(architecture)
    }
}

/// GGUF lacks the number under the scores' root: the largest network of a generation (`largest` layers) has
/// `hidden_size / num_attention_heads`, others a head's features (`gemma2.cpp`, `gemma3.cpp` in llama.cpp).
/// Without a list, all layers but every `period`-th have the window.
pub(crate) fn gguf_keys(file: &Metadata<'_>, largest: usize, period: usize, slides: bool) -> Value {
    let layers = file.count("block_count");
    let scalar = if layers == Some(largest) { file.quotient() } else { file.features() };
    json!({
        "layer_types": gguf_layer_types(file, layers.unwrap_or(0), period, slides),
        "query_pre_attn_scalar": scalar,
        "attn_logit_softcapping": file.optional_number("attn_logit_softcapping"),
        "final_logit_softcapping": file.optional_number("final_logit_softcapping"),
        "sliding_window": file.window(),
    })
}

/// As in `layer_types`.
pub(crate) fn gguf_layer_types(
    file: &Metadata<'_>,
    layers: usize,
    period: usize,
    slides: bool,
) -> Vec<&'static str> {
    let layers = layers.min(limits::LAYERS);
    let by_period = |period| (1..=layers).map(|layer: usize| !layer.is_multiple_of(period)).collect();
    let expected = "a period, or a list of true and false";
    let listed = file.typed("attention.sliding_window_pattern", expected, |value| match value {
        GgufValue::Integer(period) => {
            usize::try_from(period).ok().filter(|&period| period > 0).map(by_period)
        }
        GgufValue::Array(array) => {
            let sliding = array.iter().map(|value| match value {
                GgufValue::Bool(sliding) => Some(sliding),
                GgufValue::Integer(sliding) => Some(sliding != 0),
                _ => None,
            });
            sliding.take(limits::LAYERS).collect::<Option<Vec<bool>>>()
        }
        _ => None,
    });
    let mut sliding = listed.unwrap_or_else(|| by_period(period));
    sliding.resize(layers, false);
    let kind = |sliding| if sliding && slides { "sliding_attention" } else { "full_attention" };
    sliding.into_iter().map(kind).collect()
}
