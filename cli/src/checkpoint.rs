//! A network and the weights beside its configuration.

use std::io::ErrorKind;
use std::path::Path;

use console::warn_of_head;
use tracewright::bake::Baked;
use tracewright::irpa::{ArchiveError, Checkpoint, Gguf};
use tracewright::models::config::ConfigError;
use tracewright::models::{Architecture, ReadModel, UntiedHead, check_sizes};

use crate::error::Error;

/// The network of a folder or a GGUF file, and its weights. An error of the configuration comes first; but weights in another
/// format rarely have one. Weights of other sizes are refused before a network of them is recorded.
pub fn open(
    read: ReadModel,
    model: &Path,
    allowed_keys: &[String],
) -> Result<(Box<dyn Architecture>, Checkpoint), Error> {
    match read(model, allowed_keys) {
        Err(ConfigError::File(missing)) if missing.source.kind() == ErrorKind::NotFound => {
            Checkpoint::open(model)?;
            Err(missing.into())
        }
        network => {
            let (mut network, checkpoint) = (network?, Checkpoint::open(model)?);
            warn_of_head(fit(&mut *network, checkpoint.clone())?.as_ref());
            Ok((network, checkpoint))
        }
    }
}

/// Fits a network to the weights beside its configuration, where there are some.
pub fn fit_weights(network: &mut dyn Architecture, model: &Path) -> Result<Option<UntiedHead>, Error> {
    if !model.is_dir() && !Gguf::is_at(model) {
        return Ok(None);
    }
    match Checkpoint::open(model) {
        Ok(checkpoint) => fit(network, checkpoint),
        Err(ArchiveError::NoCheckpoint { .. }) => Ok(None),
        // A configuration alone is enough, whatever is beside it.
        Err(ArchiveError::Foreign { path, .. }) if path == model => Ok(None),
        Err(damaged) => Err(damaged.into()),
    }
}

/// Compares the sizes of a network with those of a checkpoint, and takes the checkpoint's head where it has one of its own.
fn fit(network: &mut dyn Architecture, checkpoint: Checkpoint) -> Result<Option<UntiedHead>, Error> {
    if let Some(other) = checkpoint.passed_over() {
        say!("warning: {other}");
    }
    let named = network.named(checkpoint);
    check_sizes(&network.sizes(), &named)?;
    Ok(network.settle_head(&named))
}

/// Says what became of the checkpoint beyond a copy.
pub fn report_baked(baked: &Baked) {
    if let Some((_, from, to)) = baked.converted.first() {
        say!("converted {} tensors from {from} to {to}", baked.converted.len());
    }
    for (what, count) in &baked.blocks {
        say!("{count} tensors in {what}");
    }
    if !baked.ignored.is_empty() {
        say!("left out {}: {}", baked.ignored.len(), baked.ignored.join(", "));
    }
}
