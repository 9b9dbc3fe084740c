//! Decides whether the output head shares its weight with the embedding table. If the configuration
//! and the checkpoint disagree, the checkpoint has priority.

use std::path::PathBuf;

use irpa::Checkpoint;

pub(crate) const HEAD: &str = "lm_head.weight";

/// The configuration ties the head. Printed as a warning.
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

/// If it differs from the embedding table.
pub(crate) fn own_head(checkpoint: &Checkpoint, embedding: &str) -> Option<UntiedHead> {
    let differs = checkpoint.get(HEAD).and(checkpoint.get(embedding)).is_some()
        && !checkpoint.holds_equal(HEAD, embedding);
    differs.then(|| UntiedHead { path: checkpoint.path().into(), embedding: embedding.into() })
}
