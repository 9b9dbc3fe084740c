//! Granite, dense: Shen et al., "Power Scheduler" (2024), which transformers cites; names as in the HF checkpoint
//! (`modeling_granite.py`). A Llama whose embeddings, scores, residuals and logits have factors.

use dsl::nn::{Attend, Kv};
use dsl::{Float, Tensor, model};

use crate::config::Keys;
use crate::decoder::{AttentionBlock, Decoder, DecoderConfig, LlamaConfig};
use crate::family::Family;
use crate::llama::{self, Attention, Mlp};

/// The whole network.
pub type Granite<T> = Decoder<T, Layer<T>, GraniteConfig>;

pub(crate) const FAMILY: Family = Family {
    about: "factors on embeddings, scores, residuals and logits",
    ..Family::of(&["GraniteForCausalLM"], &["GraniteModel"], &["granite"])
};

model! {
    /// As in Llama, but what each half adds to the residual has a factor (`GraniteDecoderLayer`).
    pub Layer<T: Float>(GraniteConfig): AttentionBlock<T> {
        dims { D = hidden_size }

        input_layernorm: RmsNorm[D](eps = rms_norm_eps),
        self_attn: Attention<T>,
        post_attention_layernorm: RmsNorm[D](eps = rms_norm_eps),
        mlp: Mlp<T>,

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let factor = self.config.residual_multiplier;
            let x = x + self.self_attn.forward(self.input_layernorm(x), at, kv) * factor;
            x + self.mlp.forward(self.post_attention_layernorm(x)) * factor
        }
    }
}

/// `config.json` of a Granite.
#[derive(Clone, Debug, PartialEq)]
pub struct GraniteConfig {
    /// What it shares with Llama.
    pub llama: LlamaConfig,
    /// The factor on embeddings.
    pub embedding_multiplier: f64,
    /// The factor on scores.
    pub attention_multiplier: f64,
    /// The factor on what a half of a layer adds to the residual.
    pub residual_multiplier: f64,
    /// Logits are divided by it.
    pub logits_scaling: f64,
}

descends!(GraniteConfig from llama: LlamaConfig);

impl DecoderConfig for GraniteConfig {
    fn embedded<T: Float>(&self, x: Tensor<T>) -> Tensor<T> {
        x * self.embedding_multiplier
    }

    fn attention<T: Float>(&self, _layer: usize, rotary: &Attend<T>) -> Attend<T> {
        rotary.clone().scaled(self.attention_multiplier)
    }

    fn logits<T: Float>(&self, x: Tensor<T>) -> Tensor<T> {
        x / self.logits_scaling
    }
}

/// Reads the `config.json` of a Granite. Defaults are those of `GraniteConfig` in transformers.
pub(crate) fn read(keys: &Keys) -> GraniteConfig {
    GraniteConfig {
        llama: llama::read(keys),
        embedding_multiplier: keys.number_or("embedding_multiplier", 1.0),
        attention_multiplier: keys.number_or("attention_multiplier", 1.0),
        residual_multiplier: keys.number_or("residual_multiplier", 1.0),
        logits_scaling: keys.number_or("logits_scaling", 1.0),
    }
}
