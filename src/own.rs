//! The files of a model, which no output replaces: nothing else may have them.

use std::fs;
use std::path::{Path, PathBuf};

use files::is_one_of;

/// What a model is read from, and an output was to be.
#[derive(Debug, thiserror::Error)]
#[error("`{}` is a file of the model itself; write elsewhere", .0.display())]
pub struct OwnFile(pub PathBuf);

/// The end of the name of what a checkpoint is read from.
const READ: &[&str] = &["json", "safetensors", "jinja", "gguf"];

/// Whether a file may be written at `out` that is made from the model at `model`, a folder or a file: not if `out`, under
/// whatever name, is that file, one beside it or in the folder that a checkpoint is read from, or any file of an export.
///
/// # Errors
/// If it may not.
pub fn check_output(model: &Path, out: &Path) -> Result<(), OwnFile> {
    let folder = if model.is_file() { model.parent().unwrap_or(model) } else { model };
    // The parent of a bare name is the empty path.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let is_export = folder.join("manifest.json").exists();
    let read = |path: &PathBuf| path.extension().is_some_and(|end| READ.iter().any(|read| end == *read));
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = files.filter(|path| is_export || read(path)).chain([model.to_owned()]);
    match is_one_of(out, files) {
        true => Err(OwnFile(out.to_owned())),
        false => Ok(()),
    }
}
