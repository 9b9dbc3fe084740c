//! Apertus: Swiss AI, "Apertus: Democratizing Open and Compliant LLMs" (2025), §2. Field names
//! follow the names in the Hugging Face checkpoint (`modeling_apertus.py`). The network differs
//! from Qwen3 in the feed-forward network, which has no gate. The activation function of the
//! feed-forward network has trained parameters.

use dsl::nn::{Attend, Kv};
use dsl::{F32, Float, Tensor, model};

use crate::config::Keys;
use crate::decoder::{AttentionBlock, Decoder, Defaults, LlamaConfig};
use crate::family::Family;
use crate::qwen3::Attention;
use crate::rope::{RopeDefaults, RopeParameters, RopeScaling};

/// The whole Apertus network, from token ids to logits.
pub type Apertus<T> = Decoder<T, Layer<T>>;

pub(crate) const FAMILY: Family = Family {
    about: "norms on queries and keys; xIELU activation without a gate",
    ..Family::of(&["ApertusForCausalLM"], &["ApertusModel"], &["apertus"])
};

model! {
    /// Llama's layer with other names for the norms.
    pub Layer<T: Float>(LlamaConfig): AttentionBlock<T> {
        // The axis O has one element, which is a trained parameter of the activation.
        dims { D = hidden_size, F = intermediate_size, O = 1 }

        attention_layernorm: RmsNorm[D](eps = rms_norm_eps),
        self_attn: Attention<T>,
        feedforward_layernorm: RmsNorm[D](eps = rms_norm_eps),
        mlp: Mlp,

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let x = x + self.self_attn.forward(self.attention_layernorm(x), at, kv);
            x + self.mlp(self.feedforward_layernorm(x))
        }
    }

    /// A linear layer, the activation xIELU and a second linear layer.
    pub Mlp {
        up_proj: Linear[D -> F],
        act_fn: Xielu,
        down_proj: Linear[F -> D],

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            self.down_proj(self.act_fn(self.up_proj(x)))
        }
    }

    /// Huang and Schlag, "Deriving Activation Functions Using Integration", 2024.
    pub Xielu {
        alpha_p: Weight[O],
        alpha_n: Weight[O],
        beta: Weight[],
        eps: Weight[],

        fn forward(x: T[B, S, F]) -> T[B, S, F] {
            let [alpha_p, alpha_n] = [self.alpha_p(), self.alpha_n()].map(|one| one.sum(O).softplus());
            let (beta, eps) = (self.beta(), self.eps());
            let linear = x * beta;
            let positive = x * alpha_p * x + linear;
            let negative = (expm1(x.minimum(eps)) - x) * (alpha_n + beta) + linear;
            x.less_equal(0.0).select(negative, positive)
        }
    }
}

/// Computes eˣ − 1 in f32 for x ≤ 0. The formula 2t / (1 − t) with t = tanh(x/2) avoids cancellation near 0.
#[track_caller]
fn expm1<T: Float>(x: Tensor<T>) -> Tensor<T> {
    let t = (x.to::<F32>() * 0.5).tanh();
    (t * 2.0 / (-t + 1.0)).to()
}

pub(crate) fn read(keys: &Keys) -> LlamaConfig {
    // HF transformers does not read these keys of the published checkpoints.
    keys.ignore(&["hidden_dropout"]);
    keys.always("mlp_bias", false);
    keys.always("post_norm", false);
    keys.always("qk_norm", true);
    let defaults = Defaults {
        hidden_act: &["xielu"],
        rms_norm_eps: 1e-5,
        ..Defaults::of(RopeDefaults { theta: 12e6, ..RopeDefaults::new(65_536) })
    };
    let attention_bias = keys.flag("attention_bias", false);
    let llama = LlamaConfig::with_rope(keys, defaults, |keys, defaults| {
        let read = RopeParameters::read(keys, defaults);
        let is_default = ["rope_parameters", "rope_scaling"].iter().all(|key| keys.get(key).is_none());
        if is_default && read.theta != defaults.theta {
            let expected = "12000000, which transformers uses if there is no `rope_scaling`";
            keys.refuse("rope_theta", read.theta, expected);
        }
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192.0,
        };
        if is_default { RopeParameters { scaling, ..read } } else { read }
    });
    LlamaConfig { attention_bias, ..llama }
}
