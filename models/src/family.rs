//! [`Family`]: facts about a family of networks besides its network and configuration.

pub(crate) use crate::gguf::{GgufFamily, Metadata, interleaved, joined};
use crate::presets::Preset;
pub(crate) use crate::presets::presets;

/// Endings of keys in a checkpoint that stores several parameters as one tensor, each with the endings of the
/// parameters' keys.
pub type Stacks = &'static [(&'static str, &'static [&'static str])];

/// A family of networks: its names in files, and its published sizes.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The names in the `architectures` of a `config.json`.
    pub architectures: &'static [&'static str],
    /// Model classes without a head. transformers maps them to the first architecture by the model type.
    pub bases: &'static [&'static str],
    /// The `model_type` of a `config.json` without `architectures`.
    pub model_types: &'static [&'static str],
    /// The network's differences from others, for the table of architectures in the documentation.
    pub about: &'static str,
    /// Tensors of a checkpoint that contain several parameters.
    pub stacks: Stacks,
    /// The family's GGUF files, if llama.cpp supports the family.
    pub gguf: Option<GgufFamily>,
    /// Published sizes of the network.
    pub presets: &'static [Preset],
}

impl Family {
    /// A family with these architectures, classes without a head, and model types.
    pub(crate) const fn of(
        architectures: &'static [&'static str],
        bases: &'static [&'static str],
        model_types: &'static [&'static str],
    ) -> Self {
        Self { architectures, bases, model_types, about: "", stacks: &[], gguf: None, presets: &[] }
    }

    /// Whether a `config.json` with the architecture or model type `found` belongs to this family.
    pub(crate) fn is_named(&self, found: &str) -> bool {
        [self.architectures, self.bases, self.model_types].iter().any(|names| names.contains(&found))
    }
}
