//! EXAONE 4.0: LG AI Research, "EXAONE 4.0: Unified Large Language Models" (2025), §2.1. Field
//! names follow the names in the Hugging Face checkpoint (`modeling_exaone4.py`). The network has
//! the norms of OLMo 2 and the attention of Qwen3. If some layers have an attention window, the
//! other layers have no rotary embedding.

use dsl::nn::{Attend, Kv};
use dsl::{Float, model};

use crate::config::Keys;
use crate::decoder::{AttentionBlock, Decoder, Defaults, LlamaConfig};
use crate::family::Family;
use crate::llama::Mlp;
use crate::qwen3::Attention;
use crate::smollm3::SmolLm3Config;

/// The whole EXAONE 4.0 network, from token ids to logits.
pub type Exaone4<T> = Decoder<T, Layer<T>, SmolLm3Config>;

pub(crate) const FAMILY: Family = Family {
    // SmolLM3 has the same text, so the table of architectures describes the two families in one
    // row.
    about: crate::smollm3::FAMILY.about,
    ..Family::of(&["Exaone4ForCausalLM"], &["Exaone4Model"], &["exaone4"])
};

model! {
    /// OLMo 2's layer, with norms that round before they multiply by the weight.
    pub Layer<T: Float>(LlamaConfig): AttentionBlock<T> {
        dims { D = hidden_size }

        self_attn: Attention<T>,
        post_attention_layernorm: RmsNorm[D](eps = rms_norm_eps),
        mlp: Mlp<T>,
        post_feedforward_layernorm: RmsNorm[D](eps = rms_norm_eps),

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let x = x + self.post_attention_layernorm(self.self_attn.forward(x, at, kv));
            x + self.post_feedforward_layernorm(self.mlp.forward(x))
        }
    }
}

pub(crate) fn read(keys: &Keys) -> SmolLm3Config {
    let defaults = Defaults { num_key_value_heads: Some(32), rms_norm_eps: 1e-5, ..Defaults::new(2048) };
    let llama = LlamaConfig::shared(keys, defaults);
    let window = keys.nullable_count("sliding_window", Some(4096));
    let period = match keys.get("layer_types") {
        // Published files also contain a pattern such as `LLLG`. HF transformers reads only the
        // list of layer types.
        Some(_) => {
            keys.ignore(&["sliding_window_pattern"]);
            None
        }
        None => keys.optional_count("sliding_window_pattern"),
    };
    let period = period.unwrap_or(4);
    let windows =
        keys.windows(llama.num_hidden_layers, window, |layer| window.is_some() && (layer + 1) % period != 0);
    let rotary = windows.iter().map(|sees| window.is_none() || sees.is_some()).collect();
    SmolLm3Config { llama: LlamaConfig { windows, ..llama }, rotary }
}
