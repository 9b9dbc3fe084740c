//! The files of a model that say something about its texts: in its folder, or made of a GGUF file.

use std::io;
use std::path::Path;

use errors::FileError;
use irpa::Gguf;
use serde_json::Value;

use crate::GenerateError;
use crate::gguf::gguf_text;

/// Reads a JSON file of a model; `None` when there is none.
pub(crate) fn read_json(model: &Path, name: &str) -> Result<Option<Value>, GenerateError> {
    let Some(text) = read_file(model, name, files::read_json)? else { return Ok(None) };
    let value = serde_json::from_str(&text)
        .map_err(|source| GenerateError::Json { path: model.join(name), source })?;
    Ok(Some(value))
}

/// Reads a text file of a model, of at most so many bytes; `None` when there is none.
pub(crate) fn read_text(model: &Path, name: &str, limit: u64) -> Result<Option<String>, GenerateError> {
    read_file(model, name, |path| files::read_text(path, limit))
}

fn read_file(
    model: &Path,
    name: &str,
    read: impl FnOnce(&Path) -> Result<String, FileError>,
) -> Result<Option<String>, GenerateError> {
    if Gguf::is_at(model) {
        return gguf_text(model, name);
    }
    match read(&model.join(name)) {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(None),
        read => Ok(Some(read?)),
    }
}
