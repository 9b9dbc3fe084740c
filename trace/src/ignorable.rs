//! The tensors of a checkpoint that a network deliberately does not read.

/// A tensor that a checkpoint may contain although the model does not read the tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ignorable {
    /// A tensor whose key ends with the given text. For example, `bake` ignores a checkpoint's
    /// table of rotary frequencies, because the model computes this table itself.
    Suffix(&'static str),
    /// A tensor whose key begins with the given text. For example, `bake` ignores the vision
    /// encoder in a multimodal checkpoint.
    Prefix(&'static str),
    /// A tensor whose key begins with `prefix`, followed by a layer number of at least `from`. For
    /// example, some checkpoints contain additional layers for multi-token prediction, and `bake`
    /// ignores these additional layers.
    LayersFrom {
        /// The part of the tensor's key before the layer number.
        prefix: &'static str,
        from: usize,
    },
    /// A tensor that the network declares with the given key, but that the simplifier removed. The
    /// simplifier removes tensors on which no output of the network depends.
    Unread(String),
    /// A tensor that is a copy of another tensor in the checkpoint. For example, some checkpoints
    /// contain a tied weight twice.
    EqualTo {
        /// The key of the tensor that `bake` ignores.
        key: String,
        other: String,
    },
}
