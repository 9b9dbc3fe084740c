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

/// Returns the local path of a model. If `model` is a name on the Hugging Face hub or a folder in
/// the hub's cache, the function returns the path of the downloaded snapshot. The function rejects
/// known file formats that Tracewright does not support. The function does not check files whose
/// format it does not recognize.
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

/// Reads the first bytes of a regular file. The result is empty if the file cannot be read.
fn head(path: &Path) -> Vec<u8> {
    let mut head = Vec::new();
    if path.is_file() {
        // The reader of the model reports files that cannot be read.
        let _ = File::open(path).and_then(|file| file.take(1 << 10).read_to_end(&mut head));
    }
    head
}

/// Interprets a path that does not exist as the name of a model on the Hugging Face hub.
fn hub_name(path: &Path) -> Option<ModelName> {
    let text = path.to_str()?;
    let name = ModelName::parse(text)?;
    // If a folder `models` exists, `models/llama` is a misspelled path and not a name.
    let (first, _) = text.split_once('/')?;
    (!Path::new(first).is_dir()).then_some(name)
}

/// Finds the cache of the Hugging Face hub, with the same environment variables as the Python
/// package `huggingface_hub`.
///
/// # Errors
/// Returns an error if no environment variable names the cache and the user has no home folder.
pub fn hub() -> Result<Hub, HubError> {
    let home = etcetera::choose_base_strategy().ok().map(|strategy| strategy.cache_dir());
    Hub::of_variables(|name| std::env::var_os(name), home.as_deref())
}
