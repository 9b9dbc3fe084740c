//! Gemma 2: "Gemma 2: Improving Open Language Models at a Practical Size" (2024), §2. Field names follow the
//! names in the Hugging Face checkpoint (`modeling_gemma2.py`). This file declares how Gemma 2 differs from
//! Gemma 3. Attention does not normalize queries and keys, and limits the scores with a soft bound. All
//! layers have the same rotary embedding. Every other layer has an attention window.

use crate::config::Keys;
use crate::decoder::{Defaults, LlamaConfig};
use crate::family::{Family, GgufFamily, TOWER_IGNORABLE, TOWER_PREFIXES, presets};
use crate::gemma::{self, Gemma, GemmaConfig};
use crate::llama::Attention;

/// The whole Gemma 2 network, from token ids to logits.
pub type Gemma2<T> = Gemma<T, Attention<T>>;

pub(crate) const FAMILY: Family = Family {
    about: "soft caps on attention scores and logits; a sliding window in every other layer",
    gguf: Some(GgufFamily {
        // If the key is missing, the network has the default window.
        config: |file| file.llama(gemma::gguf_keys(file, 46, 2, true)),
        ..gemma::gguf("gemma2")
    }),
    prefixes: TOWER_PREFIXES,
    ignorable: TOWER_IGNORABLE,
    presets: presets!("gemma-2-2b": "google/gemma-2-2b", "gemma-2-9b": "google/gemma-2-9b"),
    ..Family::of(&["Gemma2ForCausalLM"], &["Gemma2Model"], &["gemma2"])
};

pub(crate) fn read(keys: &Keys) -> GemmaConfig {
    keys.one_of("hidden_activation", &["gelu_pytorch_tanh"]);
    keys.always("use_bidirectional_attention", false);
    let (num_key_value_heads, head_dim, tie_word_embeddings) = (Some(4), Some(256), true);
    // Published files contain this key next to `hidden_activation`. HF transformers does not read
    // this key, so Tracewright also accepts "gelu".
    let hidden_act = &["gelu_pytorch_tanh", "gelu"];
    let defaults =
        Defaults { hidden_act, num_key_value_heads, head_dim, tie_word_embeddings, ..Defaults::new(8192) };
    let attention_bias = keys.flag("attention_bias", false);
    let llama = LlamaConfig::shared(keys, defaults);
    let window = keys.nullable_count("sliding_window", Some(4096));
    let windows = keys.windows(llama.num_hidden_layers, window, |layer| layer % 2 == 0);
    // HF transformers does not read these two keys of published files.
    keys.ignore(&["cache_implementation", "sliding_window_size"]);
    GemmaConfig {
        llama: LlamaConfig { attention_bias, attention_out_bias: attention_bias, windows, ..llama },
        query_pre_attn_scalar: keys.number_or("query_pre_attn_scalar", 256.0),
        attn_logit_softcapping: keys.nullable_number("attn_logit_softcapping", Some(50.0)),
        final_logit_softcapping: keys.nullable_number("final_logit_softcapping", Some(30.0)),
    }
}
