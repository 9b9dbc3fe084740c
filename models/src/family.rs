//! [`Family`] contains the names and published sizes of a model family. The module of each family
//! contains the network and the configuration of the family.

use trace::Ignorable;

use crate::config::Keys;
pub(crate) use crate::gguf::{GgufFamily, Metadata, interleaved, joined};
use crate::presets::Preset;
pub(crate) use crate::presets::presets;

/// The suffix of a tensor's key, and those of the several parameters in it.
pub type Stacks = &'static [(&'static str, &'static [&'static str])];

/// Describes a family of networks: the names of the family in files, and the published sizes of the family.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The family's names in the key `architectures` of a `config.json`.
    pub architectures: &'static [&'static str],
    /// Classes without an output head, for which HF transformers finds the first architecture by model type.
    pub bases: &'static [&'static str],
    /// Values of `model_type`, for a `config.json` without `architectures`, and further architectures of an
    /// encoder.
    pub model_types: &'static [&'static str],
    /// The differences from other networks, for the table in the documentation.
    pub about: &'static str,
    /// In the checkpoint and in the network.
    pub prefixes: &'static [(&'static str, &'static str)],
    /// The checkpoint key of the embedding table. A tied output head shares the weight of this table.
    pub embedding: &'static str,
    /// Tensors that a checkpoint may contain in addition to the network's parameters and a tied output head.
    pub ignorable: &'static [Ignorable],
    /// Whether layers for multi-token prediction may follow, which are ignored (Gloeckle et al., "Better &
    /// Faster Large Language Models via Multi-token Prediction", 2024).
    pub further_layers: bool,
    /// The quantization methods in `quantization_config` that the family itself reads.
    pub quantized: &'static [&'static str],
    /// Checkpoint tensors, each of which contains several parameters.
    pub stacks: Stacks,
    /// Needed only if several families share an architecture name.
    pub is: fn(&Keys) -> bool,
    /// The description of the family's GGUF files, if llama.cpp supports the family.
    pub gguf: Option<GgufFamily>,
    /// The published sizes of the network, such as a model with 8 billion parameters.
    pub presets: &'static [Preset],
}

/// In files that HF transformers saves without an output head, and in most networks.
pub(crate) const BASE: &[(&str, &str)] =
    &[("embed_tokens.", "model.embed_tokens."), ("layers.", "model.layers."), ("norm.", "model.norm.")];

/// For published files with a vision tower, files by HF transformers 5, and files without a head: in the
/// checkpoint and in the network.
pub(crate) const TOWER_PREFIXES: &[(&str, &str)] = &[
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("language_model.", "model."),
    BASE[0],
    BASE[1],
    BASE[2],
];

/// For published files with a vision tower that the network reads, and files by HF transformers 5.
pub(crate) const SEEING_PREFIXES: &[(&str, &str)] = &[
    TOWER_PREFIXES[0],
    TOWER_PREFIXES[1],
    TOWER_PREFIXES[2],
    TOWER_PREFIXES[3],
    TOWER_PREFIXES[4],
    TOWER_PREFIXES[5],
    TOWER_PREFIXES[6],
    ("vision_tower.vision_model.", "model.vision_model."),
    ("model.vision_tower.vision_model.", "model.vision_model."),
    ("vision_tower.", "model.vision_model."),
    ("model.vision_tower.", "model.vision_model."),
    ("multi_modal_projector.", "model.multi_modal_projector."),
];

/// The vision tower under the network's names, which the tower reads.
pub(crate) const SEEING_IGNORABLE: &[Ignorable] = &[
    Ignorable::Suffix(".rotary_emb.inv_freq"),
    Ignorable::Prefix("model.vision_model."),
    Ignorable::Prefix("model.multi_modal_projector."),
];

/// The vision tower.
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
            gguf: None,
            presets: &[],
        }
    }

    pub(crate) fn is_named(&self, found: &str) -> bool {
        [self.architectures, self.bases, self.model_types].iter().any(|names| names.contains(&found))
    }
}
