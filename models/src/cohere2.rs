//! Command R7B and Command A: Cohere, "Command A: An Enterprise-Ready Large Language Model" (2025), §2.1.
//! Field names follow the names in the Hugging Face checkpoint (`modeling_cohere2.py`). The network differs
//! from Llama in the layers. A layer applies attention and the feed-forward network in parallel to the output
//! of one layer norm. In layers with an attention window, the rotary embedding rotates pairs of neighbouring
//! features. Layers without an attention window have no rotary embedding.

use dsl::nn::{Attend, Kv};
use dsl::{Float, Tensor, model};
use ops::ops::RopeLayout;

use crate::config::Keys;
use crate::decoder::{AttentionBlock, Decoder, DecoderConfig, Defaults, LlamaConfig, Norm};
use crate::family::Family;
use crate::llama::{Attention, Mlp};

/// The whole Command R7B network, from token ids to logits.
pub type Cohere2<T> = Decoder<T, Layer<T>, Cohere2Config>;

pub(crate) const FAMILY: Family = Family {
    about: "attention and feed-forward network in parallel, layer norms without bias, interleaved rotary embedding",
    ..Family::of(&["Cohere2ForCausalLM"], &["Cohere2Model"], &["cohere2"])
};

model! {
    /// Adds the outputs of attention and of the feed-forward network to one residual (`Cohere2DecoderLayer`).
    pub Layer<T: Float>(LlamaConfig): AttentionBlock<T> {
        dims { D = hidden_size }

        input_layernorm: LayerNorm[D](eps = rms_norm_eps, bias = false),
        self_attn: Attention<T>,
        mlp: Mlp<T>,

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let normed = self.input_layernorm(x);
            x + self.self_attn.forward(normed, at, kv) + self.mlp.forward(normed)
        }
    }
}

/// The values in the `config.json` of a Command R7B model.
#[derive(Clone, Debug, PartialEq)]
pub struct Cohere2Config {
    /// The configuration keys that Cohere 2 shares with Llama.
    pub llama: LlamaConfig,
    /// The factor by which the logits are multiplied.
    pub logit_scale: f64,
}

descends!(Cohere2Config from llama: LlamaConfig);

impl DecoderConfig for Cohere2Config {
    const NORM: Norm = Norm::Layer { bias: false };

    fn attention<T: Float>(&self, layer: usize, rotary: &Attend<T>) -> Attend<T> {
        match self.window(layer) {
            None => Attend::causal(rotary.at, rotary.queries),
            window => Attend { layout: RopeLayout::Interleaved, ..rotary.clone() }.windowed(window),
        }
    }

    fn logits<T: Float>(&self, x: Tensor<T>) -> Tensor<T> {
        x * self.logit_scale
    }
}

/// Configuration keys that published `config.json` files contain but HF transformers does not read.
const IGNORED: &[&str] = &[
    "cache_implementation",
    "layer_switch",
    "order_of_interleaved_layers",
    "position_embedding_type",
    "rotary_pct",
    "use_embedding_sharing",
    "use_gated_activation",
    "use_parallel_block",
    "use_parallel_embedding",
];

pub(crate) fn read(keys: &Keys) -> Cohere2Config {
    keys.ignore(IGNORED);
    let defaults = Defaults {
        norm_key: "layer_norm_eps",
        rms_norm_eps: 1e-5,
        tie_word_embeddings: true,
        ..Defaults::new(8192)
    };
    let attention_bias = keys.flag("attention_bias", false);
    let llama = LlamaConfig::shared(keys, defaults);
    let period = keys.sliding_period().unwrap_or(4);
    let window = keys.nullable_count("sliding_window", Some(4096));
    let windows = keys.windows(llama.num_hidden_layers, window, |layer| (layer + 1) % period != 0);
    Cohere2Config {
        llama: LlamaConfig { attention_bias, attention_out_bias: attention_bias, windows, ..llama },
        logit_scale: keys.number_or("logit_scale", 0.0625),
    }
}
