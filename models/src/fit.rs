//! Reads a network's configuration, and the weights in the same folder. Tracewright checks that the
//! sizes in the configuration match the shapes of the weights.

use std::fmt;
use std::io::ErrorKind;

use irpa::{ArchiveError, Checkpoint, ModelFiles, PassedOver};

use crate::config::ConfigError;
use crate::{Opened, OtherSizes, ReadModel, UntiedHead, check_sizes};

/// A network with weights whose shapes match the network's configuration.
pub struct Fitted {
    /// The network.
    pub network: Opened,
    /// The weights under the names that the network declares.
    pub checkpoint: Checkpoint,
    /// Warnings about the model's files.
    pub warnings: Vec<OpenWarning>,
}

/// A warning about the files of a model. Tracewright can use a model despite the warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenWarning {
    /// The checkpoint has a weight of the head, although the configuration ties it to the embedding.
    UntiedHead(UntiedHead),
    /// The folder of the model contains additional weight files, which Tracewright ignores.
    PassedOver(PassedOver),
    /// An adapter changes matrices that the model's file stores in a quantized format.
    Unquantized {
        /// The number of such matrices.
        matrices: usize,
        /// The formats in the file.
        formats: Vec<String>,
    },
    /// A key of `generation_config.json` would change the model's texts, but is not applied.
    UnappliedKey {
        /// The name of the key.
        key: String,
        /// The value of the key, as JSON.
        found: String,
    },
}

impl fmt::Display for OpenWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UntiedHead(head) => head.fmt(f),
            Self::PassedOver(other) => other.fmt(f),
            Self::Unquantized { matrices, formats } => write!(
                f,
                "the adapter changes {matrices} matrices that the file stores as {}; the sums are stored \
                 unquantized, unless you select a format",
                formats.join(", ")
            ),
            Self::UnappliedKey { key, found } => {
                write!(f, "`{key}` in `generation_config.json` is `{found}`, which has no effect here")
            }
        }
    }
}

/// The reason why Tracewright cannot use a network together with its weights.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    /// The configuration cannot be read, or contains invalid values.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The shapes of the weights differ from the sizes in the configuration.
    #[error(transparent)]
    Sizes(#[from] OtherSizes),
}

/// Also checks the shapes of the weights, before the network is recorded.
pub fn open(
    read: ReadModel,
    files: impl Into<ModelFiles>,
    allowed_keys: &[String],
) -> Result<Fitted, FitError> {
    let files = files.into();
    match read(files.clone(), allowed_keys) {
        // Weights in an unsupported format often have no configuration. If the configuration is
        // missing, the function returns the error about the format of the weights.
        Err(ConfigError::File(missing)) if missing.source.kind() == ErrorKind::NotFound => {
            files.checkpoint()?;
            Err(ConfigError::File(missing).into())
        }
        network => {
            let mut network = network?;
            let named = network.without_folders(&files)?;
            let warnings = fit(&network, &named)?;
            network.renamed = Some(named);
            let checkpoint = network.weights(&files)?;
            network.renamed = Some(checkpoint.clone());
            Ok(Fitted { network, checkpoint, warnings })
        }
    }
}

/// Compares with the weights in the configuration's folder, if there are any.
pub fn fit_beside(network: &Opened, files: impl Into<ModelFiles>) -> Result<Vec<OpenWarning>, FitError> {
    let files = files.into();
    let path = files.path();
    if !path.is_dir() && !files.is_gguf() {
        return Ok(Vec::new());
    }
    match network.without_folders(&files) {
        Ok(named) => fit(network, &named),
        Err(ArchiveError::NoCheckpoint { .. }) => Ok(Vec::new()),
        // A configuration without weights is valid, so unsupported files next to the configuration
        // are no error.
        Err(ArchiveError::Foreign { path: foreign, .. }) if foreign == path => Ok(Vec::new()),
        Err(damaged) => Err(damaged.into()),
    }
}

/// Returns all warnings about the model's files.
fn fit(network: &Opened, named: &Checkpoint) -> Result<Vec<OpenWarning>, FitError> {
    let passed_over = named.passed_over().cloned().map(OpenWarning::PassedOver);
    check_sizes(&network.sizes(), named)?;
    let untied_head = network.untied_head.clone().map(OpenWarning::UntiedHead);
    Ok(passed_over.into_iter().chain(untied_head).collect())
}
