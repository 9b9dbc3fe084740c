//! Whether the head of a network is its embedding: the configuration declares it, and the checkpoint decides.

use std::path::PathBuf;

use irpa::Checkpoint;

/// The key of the head.
pub(crate) const HEAD: &str = "lm_head.weight";

/// A head that a checkpoint has although the configuration ties it to the embedding. Its text is a warning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`lm_head.weight` differs from `{embedding}` in `{}`, and the configuration ties them; \
     the head is `lm_head.weight`, as in transformers",
    .path.display()
)]
pub struct UntiedHead {
    /// The checkpoint.
    pub path: PathBuf,
    /// The key of the embedding.
    pub embedding: String,
}

/// The head of a checkpoint, if it differs from the embedding. Reads both tensors where both are there.
pub(crate) fn own_head(checkpoint: &Checkpoint, embedding: &str) -> Option<UntiedHead> {
    let differs = checkpoint.get(HEAD).and(checkpoint.get(embedding)).is_some()
        && !checkpoint.holds_equal(HEAD, embedding);
    differs.then(|| UntiedHead { path: checkpoint.path().into(), embedding: embedding.into() })
}
