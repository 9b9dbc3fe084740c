//! The files of a model, which no output replaces: nothing else may have them.

use std::fs;
use std::path::{Path, PathBuf};

use files::is_one_of;
use irpa::Gguf;

/// What a model is read from, and an output was to be.
#[derive(Debug, thiserror::Error)]
#[error("`{}` is a file of the model itself; write elsewhere", .0.display())]
pub struct OverwritesModel(pub PathBuf);

/// The end of the name of what a checkpoint is read from.
const READ: &[&str] = &["json", "safetensors", "jinja", "gguf"];

/// Whether a file may be written at `out` that is made from the model at `model`: not if `out`, under whatever name, is what
/// the model is read from. That is a GGUF file; or in its folder, or in that of a file of it, whatever a checkpoint is read
/// from, and each file of an export.
///
/// # Errors
/// If it may not.
pub fn check_output(model: &Path, out: &Path) -> Result<(), OverwritesModel> {
    let mut own = vec![model.to_owned()];
    if !Gguf::is_at(model) {
        let folder = if model.is_file() { model.parent().unwrap_or(model) } else { model };
        // The parent of a bare name is the empty path.
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let is_export = folder.join("manifest.json").exists();
        let read = |path: &PathBuf| path.extension().is_some_and(|end| READ.iter().any(|read| end == *read));
        let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        own.extend(files.filter(|path| is_export || read(path)));
    }
    if is_one_of(out, own) { Err(OverwritesModel(out.to_owned())) } else { Ok(()) }
}
