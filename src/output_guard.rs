//! Prevents Tracewright from replacing a model's own files by an output file.

use std::fs;
use std::path::{Path, PathBuf};

use files::is_one_of;
use irpa::Gguf;

/// The path of an output is the path of the model, or of one of the model's own files.
#[derive(Debug, thiserror::Error)]
pub enum OverwritesModel {
    /// The output is the model's GGUF file, or a file in the model's folder.
    #[error("`{}` is a file of the model itself; write to another path", .0.display())]
    File(PathBuf),
    /// The output is the model's folder.
    #[error("`{}` is the model's own folder; write to another folder", .0.display())]
    Folder(PathBuf),
}

const READ: &[&str] = &["json", "safetensors", "jinja", "gguf"];

/// Checks that an output at `out` does not replace a file of the model at `model`. If the model is
/// a GGUF file, the check protects this file. If the model is a folder, the check protects all
/// files of the checkpoint or the export in this folder. The check works for links: a protected
/// file can be a link, and `out` can be a link to a protected file.
///
/// # Errors
/// Returns an error if `out` is a file of the model.
pub fn check_output(model: &Path, out: &Path) -> Result<(), OverwritesModel> {
    let mut own = vec![model.to_owned()];
    if !Gguf::is_at(model) {
        let folder = if model.is_file() { model.parent().unwrap_or(model) } else { model };
        // If the path contains no folder, the parent is the empty path.
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let is_export = folder.join("manifest.json").exists();
        let read = |path: &PathBuf| path.extension().is_some_and(|end| READ.iter().any(|read| end == *read));
        let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        own.extend(files.filter(|path| is_export || read(path)));
    }
    if is_one_of(out, own) { Err(OverwritesModel::File(out.to_owned())) } else { Ok(()) }
}

/// Checks that the folder `out`, into which a command writes a model, is neither the folder nor a file
/// of the model at `model`. Links and other spellings of the same path count too.
///
/// # Errors
/// Returns an error if `out` is the model's folder, or a file of the model.
pub fn check_output_folder(model: &Path, out: &Path) -> Result<(), OverwritesModel> {
    let same = |out: PathBuf| model.canonicalize().is_ok_and(|model| model == out);
    if out.is_dir() && out.canonicalize().is_ok_and(same) {
        return Err(OverwritesModel::Folder(out.to_owned()));
    }
    check_output(model, out)
}
