//! Prevents Tracewright from replacing a model's own files by an output file.

use std::fs;
use std::path::{Path, PathBuf};

use files::is_one_of;
use irpa::Gguf;

/// The path of an output file is the path of one of the model's own files.
#[derive(Debug, thiserror::Error)]
#[error("`{}` is a file of the model itself; write to another path", .0.display())]
pub struct OverwritesModel(pub PathBuf);

/// The file extensions of checkpoint files.
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
    if is_one_of(out, own) { Err(OverwritesModel(out.to_owned())) } else { Ok(()) }
}
