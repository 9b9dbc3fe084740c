//! A network and the weights beside its configuration, fitted to each other.

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

use irpa::{ArchiveError, Checkpoint, Gguf, PassedOver};

use crate::config::ConfigError;
use crate::{Architecture, OtherSizes, ReadModel, UntiedHead, check_sizes};

/// A network that fits its weights.
pub struct Fitted {
    /// The network.
    pub network: Box<dyn Architecture>,
    /// Its weights, as it names them.
    pub checkpoint: Checkpoint,
    /// What its user should know.
    pub warnings: Vec<OpenWarning>,
}

/// What the user of a model should know, though it opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenWarning {
    /// The checkpoint has a head of its own although the configuration ties it to the embedding.
    UntiedHead(UntiedHead),
    /// Shards of other weights lie beside the file that is read.
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

/// Why a network does not fit its weights.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The checkpoint.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The weights have other sizes than the configuration.
    #[error(transparent)]
    Sizes(#[from] OtherSizes),
}

/// The network of a folder or a GGUF file, and its weights. Weights of other sizes are refused before a network of them is
/// recorded.
///
/// # Errors
/// What is wrong with the configuration; then what is wrong with the weights.
pub fn open(read: ReadModel, path: &Path, allowed_keys: &[String]) -> Result<Fitted, FitError> {
    match read(path, allowed_keys) {
        // Weights in another format rarely have a configuration: what is wrong with them is said first.
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

/// Fits a network to the weights beside its configuration, if there are any.
///
/// # Errors
/// If the weights are damaged, or of other sizes.
pub fn fit_beside(network: &mut dyn Architecture, path: &Path) -> Result<Vec<OpenWarning>, FitError> {
    if !path.is_dir() && !Gguf::is_at(path) {
        return Ok(Vec::new());
    }
    match Checkpoint::open(path) {
        Ok(checkpoint) => fit(network, checkpoint),
        Err(ArchiveError::NoCheckpoint { .. }) => Ok(Vec::new()),
        // A configuration alone is enough, whatever is beside it.
        Err(ArchiveError::Foreign { path: foreign, .. }) if foreign == path => Ok(Vec::new()),
        Err(damaged) => Err(damaged.into()),
    }
}

/// Compares the sizes of a network with those of a checkpoint, and takes the checkpoint's head where it has one of its own.
fn fit(network: &mut dyn Architecture, checkpoint: Checkpoint) -> Result<Vec<OpenWarning>, FitError> {
    let mut warnings: Vec<_> =
        checkpoint.passed_over().cloned().map(OpenWarning::PassedOver).into_iter().collect();
    let named = network.named(checkpoint);
    check_sizes(&network.sizes(), &named)?;
    warnings.extend(network.settle_head(&named).map(OpenWarning::UntiedHead));
    Ok(warnings)
}
