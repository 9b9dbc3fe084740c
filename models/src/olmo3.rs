//! OLMo 3: Ai2, "Olmo 3" (2025), §3. Field names follow the names in the Hugging Face checkpoint
//! (`modeling_olmo3.py`). The network differs from OLMo 2 in the attention window that most layers
//! have. Only layers without a window adapt the rotary embedding to long contexts.

use crate::config::Keys;
use crate::decoder::{Defaults, LlamaConfig};
use crate::family::{Family, presets};
use crate::olmo2::Olmo2;
use crate::rope::RopeParameters;

/// The whole OLMo 3 network, from token ids to logits.
pub type Olmo3<T> = Olmo2<T>;

pub(crate) const FAMILY: Family = Family {
    about: "norms after attention and after the feed-forward network; separate rotary embeddings for sliding and global layers",
    presets: presets!("olmo-3-7b": "allenai/Olmo-3-7B-Instruct"),
    ..Family::of(&["Olmo3ForCausalLM"], &["Olmo3Model"], &["olmo3"])
};

pub(crate) fn read(keys: &Keys) -> LlamaConfig {
    let defaults = Defaults { rms_norm_eps: 1e-5, ..Defaults::new(2048) };
    let attention_bias = keys.flag("attention_bias", false);
    let mut local_rope = None;
    let llama = LlamaConfig::with_rope(keys, defaults, |keys, defaults| {
        // In the keys of HF transformers 4, `rope_theta` does not change the base of layers with a
        // window. These layers have the default base (`convert_rope_params_to_dict`).
        let [local, global] = RopeParameters::by_layer_type(keys, [5e5; 2], defaults.max_position_embeddings);
        local_rope = Some(local);
        global
    });
    let features = llama.head_dim.unwrap_or(llama.hidden_size / llama.num_attention_heads);
    local_rope.iter().for_each(|rope| rope.check(keys, features));
    let window = keys.nullable_count("sliding_window", Some(4096));
    let windows = keys.windows(llama.num_hidden_layers, window, |layer| (layer + 1) % 4 != 0);
    LlamaConfig { attention_bias, windows, local_rope, ..llama }
}
