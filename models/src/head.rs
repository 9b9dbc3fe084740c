//! Decides whether the output head shares its weight with the embedding table. If the configuration
//! and the checkpoint disagree, the checkpoint has priority.

use std::path::PathBuf;

use irpa::Checkpoint;

/// The key of the output head's weight.
pub(crate) const HEAD: &str = "lm_head.weight";

/// A checkpoint contains an output head, although the configuration ties the head to the embedding
/// table. Tracewright prints the text of this error as a warning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`lm_head.weight` differs from `{embedding}` in `{}`, but the configuration ties the two tensors; \
    Tracewright uses `lm_head.weight` for the head, as the library transformers does",
    .path.display()
)]
pub struct UntiedHead {
    /// Path of the checkpoint's file.
    pub path: PathBuf,
    /// The key of the embedding table in the checkpoint.
    pub embedding: String,
}

/// Returns the output head of a checkpoint if the head differs from the embedding table. The function
/// compares the two tensors if the checkpoint contains an output head and an embedding table.
pub(crate) fn own_head(checkpoint: &Checkpoint, embedding: &str) -> Option<UntiedHead> {
    let differs = checkpoint.get(HEAD).and(checkpoint.get(embedding)).is_some()
        && !checkpoint.holds_equal(HEAD, embedding);
    differs.then(|| UntiedHead { path: checkpoint.path().into(), embedding: embedding.into() })
}
