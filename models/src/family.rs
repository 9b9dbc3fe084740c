//! [`Family`] contains facts about a family of networks in addition to its network and configuration.

use bake::Ignorable;
use dsl::EntryPoint;

use crate::config::Keys;
pub(crate) use crate::gguf::{GgufFamily, Metadata, interleaved, joined};
use crate::presets::Preset;
pub(crate) use crate::presets::presets;

/// The suffixes of keys in a checkpoint that stores several parameters as one tensor. Each suffix is listed
/// with the suffixes of the parameters' keys.
pub type Stacks = &'static [(&'static str, &'static [&'static str])];

/// A family of networks: its names in files, and its published sizes.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The names in the `architectures` of a `config.json`.
    pub architectures: &'static [&'static str],
    /// Model classes without a head, which transformers maps to the first architecture by the model type.
    pub bases: &'static [&'static str],
    /// The values of `model_type` of a `config.json` without `architectures`.
    pub model_types: &'static [&'static str],
    /// The differences of the network from other networks, for the table of architectures in the
    /// documentation.
    pub about: &'static str,
    /// Prefixes of keys in checkpoints, each with the corresponding prefix of the network.
    pub prefixes: &'static [(&'static str, &'static str)],
    /// The key of the embedding table, which a tied head shares.
    pub embedding: &'static str,
    /// Tensors that a checkpoint may contain in addition to the parameters and a tied head.
    pub ignorable: &'static [Ignorable],
    /// Whether a checkpoint may contain multi-token prediction layers after the last layer (Gloeckle et al.,
    /// "Better & Faster Large Language Models via Multi-token Prediction", 2024). Tracewright ignores these
    /// layers.
    pub further_layers: bool,
    /// The methods of `quantization_config` whose tensors Tracewright reads.
    pub quantized: &'static [&'static str],
    /// Tensors of a checkpoint that contain several parameters.
    pub stacks: Stacks,
    /// Decides whether a `config.json` with this architecture belongs to this family, if several families
    /// have the same architecture.
    pub is: fn(&Keys) -> bool,
    /// The entry points of a program with this batch, chunk and context.
    pub entry_points: fn(usize, usize, usize) -> Vec<EntryPoint>,
    /// Folders next to the checkpoint whose tensors belong to the network.
    pub folders: &'static [&'static str],
    /// The description of the family's GGUF files, if llama.cpp supports the family.
    pub gguf: Option<GgufFamily>,
    /// Published sizes of the network.
    pub presets: &'static [Preset],
}

/// The prefixes of keys in a checkpoint that transformers saved without a head, and the prefix of most
/// networks.
pub(crate) const BASE: &[(&str, &str)] =
    &[("embed_tokens.", "model.embed_tokens."), ("layers.", "model.layers."), ("norm.", "model.norm.")];

impl Family {
    /// Creates a family with these architectures, classes without a head, and model types.
    pub(crate) const fn of(
        architectures: &'static [&'static str],
        bases: &'static [&'static str],
        model_types: &'static [&'static str],
    ) -> Self {
        Self {
            architectures,
            bases,
            model_types,
            about: "",
            prefixes: BASE,
            embedding: "model.embed_tokens.weight",
            ignorable: &[Ignorable::Suffix(".rotary_emb.inv_freq")],
            further_layers: false,
            quantized: &[],
            stacks: &[],
            is: |_| true,
            entry_points: EntryPoint::all,
            folders: &[],
            gguf: None,
            presets: &[],
        }
    }

    /// Whether a `config.json` with the architecture or model type `found` belongs to this family.
    pub(crate) fn is_named(&self, found: &str) -> bool {
        [self.architectures, self.bases, self.model_types].iter().any(|names| names.contains(&found))
    }
}
