//! The tensors of a checkpoint that a network deliberately does not read.

/// A tensor that a checkpoint may contain although the model does not read the tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ignorable {
    /// For example, a table of rotary frequencies, which the model computes itself.
    Suffix(&'static str),
    /// For example, the vision encoder of a multimodal checkpoint.
    Prefix(&'static str),
    /// Layers of `prefix` from number `from` on, such as those for multi-token prediction.
    LayersFrom {
        /// The part of the tensor's key before the layer number.
        prefix: &'static str,
        from: usize,
    },
    /// Declared by the network, but removed by the simplifier, because no output depends on it.
    Unread(String),
    /// A copy of another tensor: some checkpoints contain a tied weight twice.
    EqualTo { key: String, other: String },
}
