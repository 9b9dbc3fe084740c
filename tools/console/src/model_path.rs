//! Resolves a path or a name to a model, and explains why a path is not a model.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy as _;
use hub::{Hub, HubError, ModelName, near_path};
use tracewright::errors::FileError;
use tracewright::files::{BrokenLink, is_there};
use tracewright::irpa::{ArchiveError, Gguf, HubFolder, UnsupportedFormat};

use crate::error::ConsoleError;
use crate::network::preset;

/// For names on the hub and folders of its cache, the downloaded snapshot. Rejects known formats that
/// Tracewright does not support, but does not check unknown ones.
pub fn resolved(model: &Path) -> Result<PathBuf, ConsoleError> {
    if let Some(target) = BrokenLink::at(model) {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, target);
        return Err(FileError { action: "open", path: model.to_owned(), source }.into());
    }
    if !is_there(model) {
        if preset(model).is_some() {
            return Ok(model.to_owned());
        }
        if let Some(name) = ModelName::of_path(model) {
            return hub()?.find(&name)?.ok_or(ConsoleError::NotDownloaded { name });
        }
        return match near_path(model) {
            Some(near) => Err(ConsoleError::Misspelled { path: model.to_owned(), near }),
            None => Ok(model.to_owned()),
        };
    }
    if let Some(hub) = HubFolder::at(model) {
        return Ok(hub.snapshot()?.to_owned());
    }
    let foreign = match model.is_dir() {
        // `ModelFiles` parses the file, and rejects a file that is only a part of a model.
        false if Gguf::is_at(model) => None,
        true if ["config.json", "manifest.json"].iter().any(|name| is_there(&model.join(name))) => None,
        true => UnsupportedFormat::of_folder(model)?,
        false => UnsupportedFormat::of_file(model, &head(model)),
    };
    match foreign {
        Some(format) => Err(ArchiveError::Foreign { path: model.to_owned(), format }.into()),
        None => Ok(model.to_owned()),
    }
}

/// Reads the first bytes of a regular file. The result is empty if the file cannot be read, and for JSON.
fn head(path: &Path) -> Vec<u8> {
    let mut head = Vec::new();
    if path.is_file() && path.extension().is_none_or(|end| end != "json") {
        // The reader of the model reports files that cannot be read.
        let _ = File::open(path).and_then(|file| file.take(1 << 10).read_to_end(&mut head));
    }
    head
}

/// By the environment variables of `huggingface_hub`.
pub fn hub() -> Result<Hub, HubError> {
    let home = etcetera::choose_base_strategy().ok().map(|strategy| strategy.cache_dir());
    Hub::of_variables(|name| std::env::var_os(name), home.as_deref())
}
