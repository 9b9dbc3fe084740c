//! Decides whether the output head is the embedding table. The configuration contains a setting, but the
//! checkpoint has priority.

use std::path::PathBuf;

use irpa::Checkpoint;

/// The key of the output head.
pub(crate) const HEAD: &str = "lm_head.weight";

/// A head in a checkpoint whose configuration ties the head to the embedding. The text of this error is shown
/// as a warning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`lm_head.weight` differs from `{embedding}` in `{}`, but the configuration ties the two tensors; \
    Tracewright uses `lm_head.weight` for the head, as transformers does",
    .path.display()
)]
pub struct UntiedHead {
    /// Path of the checkpoint's file.
    pub path: PathBuf,
    /// The key of the embedding in the checkpoint.
    pub embedding: String,
}

/// The head of a checkpoint if it differs from the embedding. The function compares both tensors if the
/// checkpoint contains both.
pub(crate) fn own_head(checkpoint: &Checkpoint, embedding: &str) -> Option<UntiedHead> {
    let differs = checkpoint.get(HEAD).and(checkpoint.get(embedding)).is_some()
        && !checkpoint.holds_equal(HEAD, embedding);
    differs.then(|| UntiedHead { path: checkpoint.path().into(), embedding: embedding.into() })
}
