//! Describes networks that contain a module for multi-token prediction (Gloeckle et al., "Better &
//! Faster Large Language Models via Multi-token Prediction", 2024). The module proposes draft tokens.

use irpa::Checkpoint;

use crate::Architecture;

/// A weight that every module for multi-token prediction has.
const WEIGHT: &str = "mtp.fc.weight";

/// The reason why a model cannot propose draft tokens with a module for multi-token prediction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MtpError {
    /// Tracewright supports no module for multi-token prediction in networks of the model's family.
    #[error("the model's family has no module for multi-token prediction that Tracewright supports")]
    Family,
    /// The configuration declares a number of layers that Tracewright does not support.
    #[error("`mtp_num_hidden_layers` is {layers}, expected 1")]
    Layers {
        /// The number of layers that the configuration declares.
        layers: usize,
    },
    /// The configuration declares a separate embedding table for the module.
    #[error("`mtp_use_dedicated_embeddings` is true, expected false")]
    DedicatedEmbeddings,
    /// The checkpoint contains no weights of the module.
    #[error("the checkpoint has no weights for multi-token prediction, expected `{WEIGHT}`")]
    Weights,
}

/// Fails if the module is not supported, or its weights are missing.
pub fn check_mtp(network: &dyn Architecture, checkpoint: &Checkpoint) -> Result<(), MtpError> {
    network.check_mtp()?;
    checkpoint.get(WEIGHT).map(drop).ok_or(MtpError::Weights)
}
