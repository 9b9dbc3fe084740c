//! StarCoder2: Lozhkov et al., "StarCoder 2 and The Stack v2" (2024). Field names follow the names in the
//! Hugging Face checkpoint (`modeling_starcoder2.py`). The network differs from Mistral in three ways. The
//! norms are layer norms, the linear layers have biases, and the feed-forward network has no gate.

use dsl::nn::{Attend, Kv, gelu_tanh};
use dsl::{Float, model};

use crate::config::Keys;
use crate::decoder::{AttentionBlock, Decoder, DecoderConfig, Defaults, LlamaConfig, Norm};
use crate::family::Family;
use crate::llama::Attention;

/// The whole StarCoder2 network, from token ids to logits.
pub type Starcoder2<T> = Decoder<T, Layer<T>, LayerNormed>;

pub(crate) const FAMILY: Family = Family {
    about: "layer norms, biases, and a feed-forward network without a gate",
    ..Family::of(&["Starcoder2ForCausalLM"], &["Starcoder2Model"], &["starcoder2"])
};

model! {
    /// Llama's layer with layer norms instead of RMS norms.
    pub Layer<T: Float>(LlamaConfig): AttentionBlock<T> {
        dims { D = hidden_size, F = intermediate_size }

        input_layernorm: LayerNorm[D](eps = rms_norm_eps),
        self_attn: Attention<T>,
        post_attention_layernorm: LayerNorm[D](eps = rms_norm_eps),
        mlp: Mlp,

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let x = x + self.self_attn.forward(self.input_layernorm(x), at, kv);
            x + self.mlp(self.post_attention_layernorm(x))
        }
    }

    /// Linear, GELU's tanh approximation, linear (`Starcoder2MLP`).
    pub Mlp {
        c_fc: Linear[D -> F](bias if mlp_bias),
        c_proj: Linear[F -> D](bias if mlp_bias),

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            self.c_proj(gelu_tanh(self.c_fc(x)))
        }
    }
}

/// The configuration of a network whose last norm is a layer norm.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNormed(LlamaConfig);

descends!(LayerNormed from 0: LlamaConfig);

impl DecoderConfig for LayerNormed {
    const NORM: Norm = Norm::Layer { bias: true };
}

impl From<LlamaConfig> for LayerNormed {
    fn from(config: LlamaConfig) -> Self {
        Self(config)
    }
}

/// For training, or not read by HF transformers.
const IGNORED: &[&str] = &[
    "activation_function",
    "attention_softmax_in_fp32",
    "embedding_dropout",
    "layer_norm_epsilon",
    "mlp_type",
    "norm_type",
    "residual_dropout",
    "scale_attention_softmax_in_fp32",
    "scale_attn_weights",
];

pub(crate) fn read(keys: &Keys) -> LlamaConfig {
    keys.ignore(IGNORED);
    let llama = LlamaConfig::shared(
        keys,
        Defaults {
            hidden_act: &["gelu_pytorch_tanh"],
            num_key_value_heads: Some(2),
            norm_key: "norm_epsilon",
            rms_norm_eps: 1e-5,
            tie_word_embeddings: true,
            ..Defaults::new(4096)
        },
    );
    let bias = keys.flag("use_bias", true);
    let windows = vec![keys.optional_count("sliding_window"); llama.num_hidden_layers].into();
    LlamaConfig { attention_bias: bias, attention_out_bias: bias, mlp_bias: bias, windows, ..llama }
}
