//! LFM2: "LFM2 Technical Report" (2025), §2. Field names follow the names in the Hugging Face
//! checkpoint (`modeling_lfm2.py`). Most layers mix neighbouring tokens with a short gated
//! convolution. Layers without a convolution have the same attention as Qwen3.

use crate::config::Keys;
use crate::family::{Family, presets};
use crate::short_conv::{self, ConvConfig, ConvDecoder};

/// The whole LFM2 network, from token ids to logits.
pub type Lfm2<T> = ConvDecoder<T>;

pub(crate) const FAMILY: Family = Family {
    about: "short convolutions between attention layers",
    gguf: Some(short_conv::GGUF),
    prefixes: &[
        ("embed_tokens.", "model.embed_tokens."),
        ("layers.", "model.layers."),
        ("embedding_norm.", "model.embedding_norm."),
    ],
    ignorable: &[],
    presets: presets!("lfm2-1.2b": "LiquidAI/LFM2-1.2B"),
    ..Family::of(&["Lfm2ForCausalLM"], &["Lfm2Model"], &["lfm2"])
};

/// Configuration keys that only published LFM2 files contain and that HF transformers does not read.
const IGNORED: &[&str] = key_names![
    block_dim block_mlp_init_scale block_norm_eps block_out_init_scale block_use_swiglu
    block_use_xavier_init conv_dim conv_dim_out conv_use_xavier_init num_heads theta use_pos_enc
];

pub(crate) fn read(keys: &Keys) -> ConvConfig {
    keys.ignore(IGNORED);
    let mut config = short_conv::shared(keys, [65_536, 2560, 12_288, 32, 32]);
    config.intermediate_size = intermediate_size(keys, config.intermediate_size);
    config
}

/// With `block_auto_adjust_ff_dim`, times 2/3 and `block_ffn_dim_multiplier`, rounded up to
/// `block_multiple_of`.
fn intermediate_size(keys: &Keys, size: usize) -> usize {
    let size = keys.optional_count("block_ff_dim").unwrap_or(size);
    let factor = keys.number_or("block_ffn_dim_multiplier", 1.0);
    let multiple = keys.optional_count("block_multiple_of").unwrap_or(256);
    if keys.flag("block_auto_adjust_ff_dim", true) {
        ((factor * (2 * size / 3) as f64) as usize).next_multiple_of(multiple)
    } else {
        size
    }
}
