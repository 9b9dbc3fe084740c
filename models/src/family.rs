//! [`Family`] contains the names and published sizes of a model family. The module of each family
//! contains the network and the configuration of the family.

use trace::Ignorable;

use crate::config::Keys;
pub(crate) use crate::gguf::{GgufFamily, Metadata, interleaved, joined};
use crate::presets::Preset;
pub(crate) use crate::presets::presets;

/// Checkpoint tensors, each of which contains several parameters. Each pair contains the suffix of
/// the tensor's key, and the suffixes of the parameters' keys.
pub type Stacks = &'static [(&'static str, &'static [&'static str])];

/// Describes a family of networks: the names of the family in files, and the published sizes of the family.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The family's names in the key `architectures` of a `config.json`.
    pub architectures: &'static [&'static str],
    /// The names of HF transformers' model classes without an output head. HF transformers uses the
    /// model type to find the first architecture for a class without an output head.
    pub bases: &'static [&'static str],
    /// The family's values of the key `model_type`, which Tracewright reads if a `config.json` has
    /// no key `architectures`.
    pub model_types: &'static [&'static str],
    /// A description of how the network differs from other networks. The documentation's table of
    /// architectures contains the description.
    pub about: &'static str,
    /// The prefixes of tensor names in checkpoints. Each pair contains a prefix in the checkpoint
    /// and the corresponding prefix in the network.
    pub prefixes: &'static [(&'static str, &'static str)],
    /// The checkpoint key of the embedding table. A tied output head shares the weight of this table.
    pub embedding: &'static str,
    /// Tensors that a checkpoint may contain in addition to the network's parameters and a tied output head.
    pub ignorable: &'static [Ignorable],
    /// Whether a checkpoint may contain multi-token prediction layers after the last layer
    /// (Gloeckle et al., "Better & Faster Large Language Models via Multi-token Prediction", 2024).
    /// Tracewright ignores multi-token prediction layers.
    pub further_layers: bool,
    /// The quantization methods in `quantization_config` that Tracewright can read for this family.
    pub quantized: &'static [&'static str],
    /// Checkpoint tensors, each of which contains several parameters.
    pub stacks: Stacks,
    /// Decides whether a `config.json` belongs to this family. Tracewright needs this function only
    /// if several families share an architecture name.
    pub is: fn(&Keys) -> bool,
    /// Lists the folders next to the checkpoint that contain further tensors of the network.
    pub folders: &'static [&'static str],
    /// The description of the family's GGUF files, if llama.cpp supports the family.
    pub gguf: Option<GgufFamily>,
    /// The published sizes of the network, such as a model with 8 billion parameters.
    pub presets: &'static [Preset],
}

/// The prefixes of keys in a checkpoint that HF transformers saves for a model without an output head. Each
/// pair contains the prefix in the checkpoint and the corresponding prefix in most networks.
pub(crate) const BASE: &[(&str, &str)] =
    &[("embed_tokens.", "model.embed_tokens."), ("layers.", "model.layers."), ("norm.", "model.norm.")];

/// Prefixes of the text tower's keys in three kinds of checkpoints: published files with a vision
/// tower, files that HF transformers 5 saved, and files without an output head. Each pair contains
/// a prefix in the checkpoint and the corresponding prefix in the network.
pub(crate) const TOWER_PREFIXES: &[(&str, &str)] = &[
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("language_model.", "model."),
    BASE[0],
    BASE[1],
    BASE[2],
];

/// Tensors of the vision tower. A checkpoint may contain tensors of the vision tower in addition to
/// the network's parameters.
pub(crate) const TOWER_IGNORABLE: &[Ignorable] = &[
    Ignorable::Suffix(".rotary_emb.inv_freq"),
    Ignorable::Prefix("vision_tower."),
    Ignorable::Prefix("multi_modal_projector."),
    Ignorable::Prefix("model.vision_tower."),
    Ignorable::Prefix("model.multi_modal_projector."),
];

impl Family {
    /// Creates a family with the given architecture names, classes without an output head, and model types.
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
