//! Dense Granite models: Shen et al., "Power Scheduler" (2024), which HF transformers cites. Field names
//! follow the names in the Hugging Face checkpoint (`modeling_granite.py`). The network differs from Llama in
//! four factors, for the embeddings, the attention scores, the residuals and the logits.

use dsl::nn::{Attend, Kv};
use dsl::{Float, Tensor, model};
use serde_json::{Value, json};

use crate::config::Keys;
use crate::decoder::{AttentionBlock, Decoder, DecoderConfig, LlamaConfig};
use crate::family::Family;
use crate::gguf::{GgufFamily, Metadata, joined};
use crate::llama::{self, Attention, Mlp};

/// The whole Granite network, from token ids to logits.
pub type Granite<T> = Decoder<T, Layer<T>, GraniteConfig>;

pub(crate) const FAMILY: Family = Family {
    about: "constant factors on embeddings, attention scores, residuals and logits",
    gguf: Some(GgufFamily { architecture: "granite", config: gguf, keys: FACTORS, ..llama::GGUF }),
    ..Family::of(&["GraniteForCausalLM"], &["GraniteModel"], &["granite"])
};

/// The names of the factors in a `config.json` and in the metadata of a GGUF file.
pub(crate) const FACTORS: &[(&str, &str)] = &[
    ("embedding_multiplier", "embedding_scale"),
    ("attention_multiplier", "attention.scale"),
    ("residual_multiplier", "residual_scale"),
    ("logits_scaling", "logit_scale"),
];

/// `LLM_ARCH_GRANITE` in llama.cpp. The default factor for scores differs from that of `config.json`.
fn gguf(file: &Metadata<'_>) -> Value {
    file.always("rope.scaling.finetuned", "true: Granite without a rotary embedding is another network");
    let mlp = json!({ "mlp_bias": file.is_biased("ffn_gate") });
    file.llama(joined([file.attention_biases(), mlp, factors(file)]))
}

pub(crate) fn factors(file: &Metadata<'_>) -> Value {
    let usual = file.features().map(|features| (features as f64).powf(-0.5));
    let factor = |key| file.optional_number(key).unwrap_or(1.0);
    json!({
        "embedding_multiplier": factor("embedding_scale"),
        "attention_multiplier": file.optional_number("attention.scale").or(usual),
        "residual_multiplier": factor("residual_scale"),
        "logits_scaling": file.number("logit_scale"),
    })
}

model! {
    /// Llama's layer, with a factor on both residual branches (`GraniteDecoderLayer`).
    pub Layer<T: Float>(GraniteConfig): AttentionBlock<T> {
        dims { D = hidden_size }

        input_layernorm: RmsNorm[D](eps = rms_norm_eps),
        self_attn: Attention<T>,
        post_attention_layernorm: RmsNorm[D](eps = rms_norm_eps),
        mlp: Mlp<T>,

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let factor = self.config.factors.residual_multiplier;
            let x = x + self.self_attn.forward(self.input_layernorm(x), at, kv) * factor;
            x + self.mlp.forward(self.post_attention_layernorm(x)) * factor
        }
    }
}

/// The values in the `config.json` of a Granite model.
#[derive(Clone, Debug, PartialEq)]
pub struct GraniteConfig {
    /// The configuration keys that Granite shares with Llama.
    pub llama: LlamaConfig,
    /// The factors by which Granite differs from Llama.
    pub factors: Factors,
}

/// The factors of a Granite network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// The factor by which the tokens' embeddings are multiplied.
    pub embedding_multiplier: f64,
    /// The factor by which attention scores are multiplied, instead of 1/√E.
    pub attention_multiplier: f64,
    /// For both residual branches.
    pub residual_multiplier: f64,
    /// The number by which the logits are divided.
    pub logits_scaling: f64,
}

descends!(GraniteConfig from llama: LlamaConfig);

impl DecoderConfig for GraniteConfig {
    fn embedded<T: Float>(&self, x: Tensor<T>) -> Tensor<T> {
        x * self.factors.embedding_multiplier
    }

    fn attention<T: Float>(&self, _layer: usize, rotary: &Attend<T>) -> Attend<T> {
        rotary.clone().scaled(self.factors.attention_multiplier)
    }

    fn logits<T: Float>(&self, x: Tensor<T>) -> Tensor<T> {
        x / self.factors.logits_scaling
    }
}

impl Factors {
    /// A missing factor is 1, as in HF transformers.
    pub(crate) fn read(keys: &Keys) -> Self {
        Self {
            embedding_multiplier: keys.number_or("embedding_multiplier", 1.0),
            attention_multiplier: keys.number_or("attention_multiplier", 1.0),
            residual_multiplier: keys.number_or("residual_multiplier", 1.0),
            logits_scaling: keys.number_or("logits_scaling", 1.0),
        }
    }
}

pub(crate) fn read(keys: &Keys) -> GraniteConfig {
    GraniteConfig { llama: llama::read(keys), factors: Factors::read(keys) }
}
