//! Resolves a path or a name to a model, and explains why a path is not a model.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy as _;
use hub::{Hub, HubError, ModelName};
use tracewright::errors::FileError;
use tracewright::files::{BrokenLink, is_there};
use tracewright::irpa::{ArchiveError, HubFolder, UnsupportedFormat};

use crate::error::ConsoleError;
use crate::network::preset;

/// The local path of a model. A name, or a folder in the hub's cache, is resolved to its snapshot. The
/// function rejects files that are known not to be models; the reader of the model decides about all other
/// files.
pub fn resolved(model: &Path) -> Result<PathBuf, ConsoleError> {
    if let Some(target) = BrokenLink::at(model) {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, target);
        return Err(FileError { action: "open", path: model.to_owned(), source }.into());
    }
    if !is_there(model) {
        let name = hub_name(model).filter(|_| preset(model).is_none());
        let Some(name) = name else { return Ok(model.to_owned()) };
        return hub()?.find(&name)?.ok_or(ConsoleError::NotDownloaded { name });
    }
    if let Some(hub) = HubFolder::at(model) {
        return Ok(hub.snapshot()?.to_owned());
    }
    let foreign = match model.is_dir() {
        true if ["config.json", "manifest.json"].iter().any(|name| is_there(&model.join(name))) => None,
        true => UnsupportedFormat::of_folder(model)?,
        false => UnsupportedFormat::of_file(model, &head(model)),
    };
    match foreign {
        Some(format) => Err(ArchiveError::Foreign { path: model.to_owned(), format }.into()),
        None => Ok(model.to_owned()),
    }
}

/// The first bytes of a regular file, if it can be read.
fn head(path: &Path) -> Vec<u8> {
    let mut head = Vec::new();
    if path.is_file() {
        // What cannot be read is said by its reader.
        let _ = File::open(path).and_then(|file| file.take(1 << 10).read_to_end(&mut head));
    }
    head
}

/// The name on the Hugging Face hub that a missing path could mean.
fn hub_name(path: &Path) -> Option<ModelName> {
    let text = path.to_str()?;
    let name = ModelName::parse(text)?;
    // `models/llama` is a path that is misspelt, if there is a folder `models`.
    let (first, _) = text.split_once('/')?;
    (!Path::new(first).is_dir()).then_some(name)
}

/// The hub and its cache, as the environment variables of `huggingface_hub` set them.
///
/// # Errors
/// Returns an error if neither a variable nor a home folder determines the cache.
pub fn hub() -> Result<Hub, HubError> {
    let home = etcetera::choose_base_strategy().ok().map(|strategy| strategy.cache_dir());
    Hub::of_variables(|name| std::env::var_os(name), home.as_deref())
}
