//! Renames the tensors of a GGUF file, and undoes the changes that the conversion to GGUF made to
//! these tensors.

use std::borrow::Cow;

use irpa::{Checkpoint, CheckpointTensor, StoredOrder};

use super::metadata::Metadata;
use super::{GgufFamily, Names};
use crate::family::Stacks;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Renaming {
    gguf: &'static GgufFamily,
    architecture: &'static str,
    stacks: Stacks,
    /// The pairs of prefixes of the family's Hugging Face files, and their name of the embedding table.
    pub(crate) prefixes: Names,
    pub(crate) embedding: &'static str,
    /// Query and key-value heads.
    heads: [usize; 2],
    /// The number of layers before the layers for multi-token prediction; `None` if there are no such layers.
    layers: Option<usize>,
}

/// The names of the tensors within a layer that most families share.
const LAYER: Names = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// The names of the tensors outside of layers that most families share.
const OUTSIDE: Names =
    &[("output", "lm_head"), ("token_embd", "model.embed_tokens"), ("output_norm", "model.norm")];

/// A key of `config.json`, and the metadata key without the architecture's prefix.
const KEYS: Names = &[
    ("num_hidden_layers", "block_count"),
    ("hidden_size", "embedding_length"),
    ("max_position_embeddings", "context_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("sliding_window", "attention.sliding_window"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("rope_theta", "rope.freq_base"),
    ("rope_scaling.factor", "rope.scaling.factor"),
    ("rope_scaling.attention_factor", "rope.scaling.attn_factor"),
    ("rope_scaling.beta_fast", "rope.scaling.yarn_beta_fast"),
    ("rope_scaling.beta_slow", "rope.scaling.yarn_beta_slow"),
    ("rope_scaling.original_max_position_embeddings", "rope.scaling.original_context_length"),
    ("original_max_position_embeddings", "rope.scaling.original_context_length"),
];

/// Read as a part of the configuration.
const CONFIGURATION: &[&str] =
    &["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

impl Renaming {
    pub(super) fn new(metadata: &Metadata<'_>) -> Self {
        let heads = ["attention.head_count", "attention.head_count_kv"].map(|key| metadata.most(key));
        let queries = heads[0].unwrap_or(0);
        Self {
            gguf: metadata.gguf,
            architecture: metadata.architecture,
            stacks: metadata.family.stacks,
            prefixes: metadata.family.prefixes,
            embedding: metadata.family.embedding,
            heads: [queries, heads[1].unwrap_or(queries)],
            layers: metadata.further_layers().and_then(|_| metadata.layers()),
        }
    }

    pub(crate) fn of(gguf: &'static GgufFamily) -> Self {
        let (architecture, heads) = (gguf.architecture, [0, 0]);
        Self { gguf, architecture, stacks: &[], prefixes: &[], embedding: "", heads, layers: None }
    }

    pub(crate) fn with_heads(self, heads: [usize; 2]) -> Self {
        Self { heads, ..self }
    }

    /// Whether `general.architecture` of a file can have this value.
    pub(crate) fn is_of(&self, architecture: &str) -> bool {
        self.gguf.architecture == architecture || self.gguf.also.contains(&architecture)
    }

    /// How a file orders the rows of `tensor`, which has as many as the weight `weight`.
    pub(crate) fn order(&self, weight: &str, tensor: &CheckpointTensor) -> StoredOrder {
        let (_, part) = place(weight);
        let (part, end) = part.rsplit_once('.').unwrap_or((part, ""));
        (self.gguf.arranged)(part, end, self.heads, &mut tensor.clone())
    }

    /// `None` if the network has no such tensor.
    pub(crate) fn name(&self, tensor: &str) -> Option<String> {
        let (layer, part) = place(tensor);
        let (own, common) = match layer {
            Some(_) => (self.gguf.parts, LAYER),
            None => (&[self.gguf.outside][..], OUTSIDE),
        };
        let before = layer.map_or_else(String::new, |layer| format!("{}.{layer}.", self.gguf.layers));
        // An entry names a whole tensor, or all of a tensor's name but its last component.
        let ends = |end: &str| end.is_empty() || end.rfind('.') == Some(0);
        let renamed = |(theirs, name): &(&str, &str)| {
            let end = part.strip_prefix(theirs).filter(|end| ends(end))?;
            Some(format!("{before}{}{end}", self.in_block(name)))
        };
        own.iter().copied().flatten().chain(common).find_map(renamed)
    }

    /// Replaces the usual name of a block at the start of `name` by the family's name of the block.
    fn in_block<'a>(&self, name: &'a str) -> Cow<'a, str> {
        let own = self.gguf.blocks.iter().find_map(|(usual, own)| {
            let rest = name.strip_prefix(usual).filter(|rest| rest.is_empty() || rest.starts_with('.'))?;
            Some(format!("{own}{rest}"))
        });
        own.map_or(Cow::Borrowed(name), Cow::Owned)
    }

    /// For one key of `config.json`, or a product of several.
    pub(crate) fn key(&self, key: &str) -> String {
        let own = |key: &str| {
            let found = self.gguf.keys.iter().chain(KEYS).find(|(theirs, _)| *theirs == key);
            found.map_or_else(|| key.to_owned(), |(_, own)| format!("{}.{own}", self.architecture))
        };
        key.split(" × ").map(own).collect::<Vec<_>>().join(" × ")
    }

    /// A tensor that the network lacks keeps its name.
    pub(crate) fn apply(&self, checkpoint: Checkpoint) -> Checkpoint {
        checkpoint.revised(|tensor| self.revise(tensor)).apart(self.stacks)
    }

    fn revise(&self, mut tensor: CheckpointTensor) -> Option<CheckpointTensor> {
        let (layer, part) = place(&tensor.name);
        let is_further = layer.is_some_and(|layer| self.layers.is_some_and(|count| layer >= count));
        if is_further || CONFIGURATION.contains(&tensor.name.as_str()) {
            return None;
        }
        let (part, end) = part.rsplit_once('.').unwrap_or((part, ""));
        let (part, end) = (part.to_owned(), end.to_owned());
        // A stack of one matrix or of one bias keeps the axis of the experts.
        let least = match (part.ends_with("_exps"), end.as_str()) {
            (true, "weight") => 3,
            (true, "bias") => 2,
            _ => 0,
        };
        (tensor.shape.len()..least).for_each(|_| tensor.shape.insert(0, 1));
        let name = self.name(&tensor.name);
        tensor.arranged = (self.gguf.arranged)(&part, &end, self.heads, &mut tensor);
        tensor.name = name.unwrap_or(tensor.name);
        Some(tensor)
    }
}

/// The layer's index, if any, and the name within.
fn place(tensor: &str) -> (Option<usize>, &str) {
    let in_layer = tensor.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let found = in_layer.and_then(|(layer, part)| Some((layer.parse().ok()?, part)));
    found.map_or((None, tensor), |(layer, part)| (Some(layer), part))
}

/// GGUF interleaves rows of query and key matrices, for kernels that rotate neighbours.
pub(crate) fn interleaved(
    part: &str,
    _end: &str,
    [queries, keys]: [usize; 2],
    tensor: &mut CheckpointTensor,
) -> StoredOrder {
    match part {
        "attn_q" if has_heads(tensor, queries) => StoredOrder::PermutedRope { heads: queries },
        "attn_k" if has_heads(tensor, keys) => StoredOrder::PermutedRope { heads: keys },
        _ => StoredOrder::Same,
    }
}

/// Each with the same even number of rows.
fn has_heads(tensor: &CheckpointTensor, heads: usize) -> bool {
    let rows = tensor.shape.first().copied().unwrap_or(0);
    heads > 0 && rows > 0 && rows.is_multiple_of(2 * heads)
}
