//! The folder that an export is written into: whole or no export at all.

use std::fs;
use std::path::{Path, PathBuf};

use errors::{FileError, WithPath as _};
use files::FolderLock;

/// What says that a folder is an export, and which one: written last.
pub(crate) const MANIFEST: &str = "manifest.json";

/// What a tokenizer is read from; copied if it is there.
pub(crate) const COPIED: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];

/// Why nothing is exported into a folder.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A file cannot be written or removed.
    #[error(transparent)]
    File(#[from] FileError),
    /// It would be written among the files of the model.
    #[error("`{}` is the model's own folder; write elsewhere", .0.display())]
    Own(PathBuf),
    /// Another run writes it.
    #[error("another export is being written into `{}`; wait for it, or write elsewhere", .0.display())]
    Locked(PathBuf),
}

/// Whether an export may be written to `out`: what the model's folder and the export both have would be replaced by
/// itself, and then by nothing.
pub(crate) fn check(model: &Path, out: &Path) -> Result<(), FolderError> {
    let same = |out: PathBuf| model.canonicalize().is_ok_and(|model| model == out);
    match out.is_dir() && out.canonicalize().is_ok_and(same) {
        true => Err(FolderError::Own(out.to_owned())),
        false => Ok(()),
    }
}

/// The files of a model that go along.
pub(crate) fn copied(model: &Path) -> impl Iterator<Item = &'static str> {
    COPIED.iter().copied().filter(|name| model.join(name).exists())
}

/// Fills the export directory `out`, which no other run does meanwhile. After a failure it is no export any more, and
/// gone if it was new.
pub(crate) fn fill<T, E: From<FolderError>>(
    out: &Path,
    fill: impl FnOnce(&Path) -> Result<T, E>,
) -> Result<T, E> {
    let made = !out.exists();
    let lock = prepare(out)?;
    let filled = fill(out);
    if filled.is_err() && made {
        // The first error matters more than a failure here.
        let _ = fs::remove_dir_all(out);
    }
    drop(lock);
    filled
}

/// Makes the folder and locks it.
fn prepare(out: &Path) -> Result<FolderLock, FolderError> {
    fs::create_dir_all(out).with_path("create", out)?;
    let lock = FolderLock::take(out)?.ok_or_else(|| FolderError::Locked(out.to_owned()))?;
    // First the manifest: it would vouch for a mixture of old and new files.
    let old = [MANIFEST].into_iter().chain(COPIED.iter().copied());
    for path in old.map(|name| out.join(name)).filter(|path| path.symlink_metadata().is_ok()) {
        fs::remove_file(&path).with_path("replace", &path)?;
    }
    Ok(lock)
}
