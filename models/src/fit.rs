//! Reads a network together with the weights next to its configuration. The module checks that the sizes in
//! both match.

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

use irpa::{ArchiveError, Checkpoint, Gguf, PassedOver};

use crate::config::ConfigError;
use crate::{Architecture, OtherSizes, ReadModel, UntiedHead, check_sizes};

/// A network, and weights whose sizes match.
pub struct Fitted {
    /// The configuration of the network.
    pub network: Box<dyn Architecture>,
    /// The weights, with the names that the network declares.
    pub checkpoint: Checkpoint,
    /// Warnings about the model's files.
    pub warnings: Vec<OpenWarning>,
}

/// A warning about a model that can be opened nevertheless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenWarning {
    /// The checkpoint contains an output head, although the configuration ties the head to the embedding.
    UntiedHead(UntiedHead),
    /// The folder also contains shards with other weights, which are ignored.
    PassedOver(PassedOver),
}

impl fmt::Display for OpenWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UntiedHead(head) => head.fmt(f),
            Self::PassedOver(other) => other.fmt(f),
        }
    }
}

/// The reason why a network and its weights cannot be used together.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    /// The configuration cannot be read, or has invalid values.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The sizes of the weights differ from the sizes in the configuration.
    #[error(transparent)]
    Sizes(#[from] OtherSizes),
}

/// Reads the network and the weights of a folder or a GGUF file. The function rejects weights of the wrong
/// size before it records a network.
///
/// # Errors
/// Returns an error if the configuration is invalid, or if the weights cannot be read, or have other sizes.
pub fn open(read: ReadModel, path: &Path, allowed_keys: &[String]) -> Result<Fitted, FitError> {
    match read(path, allowed_keys) {
        // Weights in another format rarely have a configuration, so the error about their format comes first.
        Err(ConfigError::File(missing)) if missing.source.kind() == ErrorKind::NotFound => {
            Checkpoint::open(path)?;
            Err(ConfigError::File(missing).into())
        }
        network => {
            let (mut network, checkpoint) = (network?, Checkpoint::open(path)?);
            let warnings = fit(&mut *network, checkpoint.clone())?;
            let checkpoint = network.weights(checkpoint)?;
            Ok(Fitted { network, checkpoint, warnings })
        }
    }
}

/// Compares a network with the weights next to its configuration, if there are weights.
///
/// # Errors
/// Returns an error if the weights are damaged, or have other sizes.
pub fn fit_beside(network: &mut dyn Architecture, path: &Path) -> Result<Vec<OpenWarning>, FitError> {
    if !path.is_dir() && !Gguf::is_at(path) {
        return Ok(Vec::new());
    }
    match Checkpoint::open(path) {
        Ok(checkpoint) => fit(network, checkpoint),
        Err(ArchiveError::NoCheckpoint { .. }) => Ok(Vec::new()),
        // A configuration is enough. Unsupported files next to it are not an error.
        Err(ArchiveError::Foreign { path: foreign, .. }) if foreign == path => Ok(Vec::new()),
        Err(damaged) => Err(damaged.into()),
    }
}

/// Compares the sizes of a network with the sizes of a checkpoint. The function unties the head if the
/// checkpoint contains a head that differs from the embedding.
fn fit(network: &mut dyn Architecture, checkpoint: Checkpoint) -> Result<Vec<OpenWarning>, FitError> {
    let mut warnings: Vec<_> =
        checkpoint.passed_over().cloned().map(OpenWarning::PassedOver).into_iter().collect();
    let named = network.named(checkpoint);
    check_sizes(&network.sizes(), &named)?;
    warnings.extend(network.settle_head(&named).map(OpenWarning::UntiedHead));
    Ok(warnings)
}
