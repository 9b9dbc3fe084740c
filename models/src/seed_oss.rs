//! Seed-OSS: ByteDance Seed, "Seed-OSS Open-Source Models" (2025). Field names follow the names in
//! the Hugging Face checkpoint (`modeling_seed_oss.py`). The network differs from Llama in the
//! biases of attention. One key sets the biases for queries, keys and values, and another key sets
//! the bias of the output.

use crate::config::Keys;
use crate::decoder::{Defaults, LlamaConfig};
use crate::family::Family;
use crate::llama::Llama;

/// The whole Seed-OSS network, from token ids to logits.
pub type SeedOss<T> = Llama<T>;

pub(crate) const FAMILY: Family = Family {
    about: "biases on the query, key and value projections",
    ..Family::of(&["SeedOssForCausalLM"], &["SeedOssModel"], &["seed_oss"])
};

pub(crate) fn read(keys: &Keys) -> LlamaConfig {
    if let Some(found) = keys.optional_count("pretraining_tp").filter(|&tp| tp != 1) {
        keys.refuse("pretraining_tp", found, "1");
    }
    // This key only affects training.
    keys.ignore(&["residual_dropout"]);
    let defaults = Defaults { num_key_value_heads: Some(8), head_dim: Some(128), ..Defaults::new(524_288) };
    LlamaConfig {
        attention_bias: keys.flag("attention_bias", true),
        attention_out_bias: keys.flag("attention_out_bias", false),
        mlp_bias: keys.flag("mlp_bias", false),
        ..LlamaConfig::shared(keys, defaults)
    }
}
