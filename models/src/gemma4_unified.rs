//! Gemma 4 12B: Google DeepMind, "Gemma 4" (2026). The model reads images and sound without separate towers.
//! Field names follow the names in the Hugging Face checkpoint (`modeling_gemma4_unified.py`). The text
//! network is the same as Gemma 4's, without experts and per-layer embeddings.

use crate::config::Keys;
use crate::family::Family;
use crate::gemma4;
use crate::per_layer::{self, OwnDefaults, PerLayerConfig, PerLayerDecoder};

/// The whole network, from token ids to logits.
pub type Gemma4Unified<T> = PerLayerDecoder<T>;

pub(crate) const FAMILY: Family = Family {
    about: "Gemma 4 12B: the network of Gemma 4 without experts and per-layer embeddings",
    architectures: &["Gemma4UnifiedForCausalLM", "Gemma4UnifiedForConditionalGeneration"],
    bases: &["Gemma4UnifiedTextModel", "Gemma4UnifiedModel"],
    model_types: &["gemma4_unified_text", "gemma4_unified"],
    gguf: None,
    presets: &[],
    ..gemma4::FAMILY
};

pub(crate) fn read(keys: &Keys) -> PerLayerConfig {
    let defaults = OwnDefaults {
        max_position_embeddings: 262_144,
        sliding_window: 1024,
        hidden_size_per_layer_input: 0,
    };
    per_layer::read(keys, &defaults)
}
