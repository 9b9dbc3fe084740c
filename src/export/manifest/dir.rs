//! Writes the folder of an export. At any time, the folder of an export contains either a whole
//! export or no export.

use std::path::{Path, PathBuf};
use std::{fs, io};

use errors::{FileError, WithPath as _};
use files::{FileKind, FolderLock, NewFile, NewFolder, is_one_of, is_there, limits};
use serde::{Deserialize, Serialize};

use names::{ARCHIVE, COPIED, MADE, MANIFEST, MODULE, TEXT};

pub mod names {
    /// The manifest. Only a folder with a manifest is an export, so the exporter writes the manifest last.
    pub const MANIFEST: &str = "manifest.json";
    pub const TEXT: &str = "model.mlir";
    pub const MODULE: &str = "model.vmfb";
    pub const ARCHIVE: &str = "model.irpa";
    /// The name of the archive with the weights that recipes compute from checkpoint tensors. Only
    /// exports for XLA contain an archive of weights that recipes compute.
    pub const MADE: &str = "made.irpa";
    /// The files that Tracewright needs for loading a tokenizer. The exporter copies the
    /// tokenizer's files that exist in the model's folder.
    pub const COPIED: &[&str] = files::TOKENIZER_FILES;
}

/// Without modules for XLA, which the manifest lists.
const ENGINES: &[&str] = &[TEXT, MODULE, ARCHIVE, MADE];

/// The reason why an export cannot be written to a folder.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A file of the export cannot be read, written or removed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The target folder of the export is the folder of the model.
    #[error("`{}` is the model's own folder; write to another folder", .0.display())]
    Own(PathBuf),
    /// The target folder of the export is a file of the model.
    #[error("`{}` is a file of the model itself; write to a folder", .0.display())]
    OwnFile(PathBuf),
    /// The export would replace a file that does not belong to an export.
    #[error("the folder `{}` exists and contains no export; write to another folder, or move this folder away", .0.display())]
    Foreign(PathBuf),
    /// Another process is writing an export into the folder.
    #[error("another process is writing an export into `{}`; wait until that process ends, or write to \
        another folder", .0.display())]
    Locked(PathBuf),
}

/// The keys of all manifests, by which the files of an export are found.
#[derive(Deserialize)]
struct Written {
    /// The version of the Tracewright that wrote it. Only its manifests have this key.
    #[serde(rename = "tracewright")]
    _version: String,
    /// For XLA, each has a module of its own.
    entry_points: Vec<WrittenEntry>,
}

#[derive(Deserialize)]
struct WrittenEntry {
    module: Option<String>,
}

/// The folder of an export, and the names of the files that the exporter writes.
pub struct ExportFolder<'a> {
    path: &'a Path,
    names: Vec<&'a str>,
}

impl<'a> ExportFolder<'a> {
    /// The export may write the manifest, `names` and [copied files](COPIED). Fails if `path` is the model's
    /// folder, or has files that belong to no earlier export.
    pub fn new(
        model: &Path,
        path: &'a Path,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, FolderError> {
        // What the model's folder and the export both have would be replaced by itself, and then by nothing.
        if is_same_folder(model, path) {
            return Err(FolderError::Own(path.to_owned()));
        }
        if is_one_of(path, [model]) {
            return Err(FolderError::OwnFile(path.to_owned()));
        }
        let names = [MANIFEST].into_iter().chain(COPIED.iter().copied()).chain(names).collect();
        let folder = Self { path, names };
        folder.check()?;
        Ok(folder)
    }

    /// Checks that the existing files in the folder belong to an earlier export, which may be incomplete.
    fn check(&self) -> Result<(), FolderError> {
        if self.path.exists() && !self.path.is_dir() {
            let there = Err(io::Error::from(io::ErrorKind::NotADirectory));
            return Ok(there.with_path("write into", self.path)?);
        }
        let is_ours = FolderLock::was_taken(self.path) || written(self.path)?.is_some();
        let foreign = if is_ours { None } else { self.files().next() };
        foreign.map_or(Ok(()), |file| Err(FolderError::Foreign(file)))
    }

    fn files(&self) -> impl Iterator<Item = PathBuf> {
        self.names.iter().map(|name| self.path.join(name)).filter(|path| path.symlink_metadata().is_ok())
    }

    /// `fill` writes the files under a lock. After an error, they are removed, and so is the folder if this
    /// created it.
    pub fn fill<T, E: From<FolderError>>(&self, fill: impl FnOnce(&Path) -> Result<T, E>) -> Result<T, E> {
        // Much may have come since it was asked for.
        self.check()?;
        let folder = NewFolder::create(self.path).map_err(FolderError::from)?;
        let filled = self.prepare().map_err(E::from).and_then(|lock| {
            let filled = fill(self.path);
            // The first error matters more than a failure here.
            match filled {
                Ok(_) => drop(lock),
                Err(_) => drop(self.clear(lock)),
            }
            filled
        });
        if filled.is_err() {
            folder.discard();
        }
        filled
    }

    fn prepare(&self) -> Result<FolderLock, FolderError> {
        let lock = FolderLock::take(self.path)?.ok_or_else(|| FolderError::Locked(self.path.to_owned()))?;
        Ok(self.clear(lock)?)
    }

    /// The manifest goes first, because with it a mixture of files would look like an export. If a file
    /// stays, so does the lock file, which marks leftovers.
    fn clear(&self, lock: FolderLock) -> Result<FolderLock, FileError> {
        let old = written(self.path)?.unwrap_or_default().into_iter().map(|name| self.path.join(name));
        match self.files().chain(old).try_for_each(|file| remove(&file)) {
            Ok(()) => Ok(lock),
            Err(error) => {
                lock.leave();
                Err(error)
            }
        }
    }
}

fn remove(file: &Path) -> Result<(), FileError> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.with_path("replace", file),
    }
}

/// By the export's engine; `None` without an export.
fn written(folder: &Path) -> Result<Option<Vec<String>>, FileError> {
    let path = folder.join(MANIFEST);
    if !path.is_file() {
        return Ok(None);
    }
    let manifest = serde_json::from_slice::<Written>(&files::read(&path, limits::CONFIG)?);
    Ok(manifest.ok().map(|manifest| {
        let modules = manifest.entry_points.into_iter().filter_map(|entry| entry.module);
        let is_own =
            |name: &String| Path::new(name).file_name() == Some(name.as_ref()) && name.ends_with(".mlir");
        modules.filter(is_own).chain(ENGINES.iter().map(|&name| name.to_owned())).collect()
    }))
}

fn is_same_folder(model: &Path, out: &Path) -> bool {
    let same = |out: PathBuf| model.canonicalize().is_ok_and(|model| model == out);
    out.is_dir() && out.canonicalize().is_ok_and(same)
}

/// Returns the names of the model's files that the exporter copies.
pub fn copied(model: &Path) -> impl Iterator<Item = &'static str> {
    COPIED.iter().copied().filter(|name| is_there(&model.join(name)))
}

/// Those that [`copied`] selects.
pub fn copy(model: &Path, out: &Path) -> Result<(), FileError> {
    copied(model).try_for_each(|name| copy_file(model, out, name))
}

/// Copies a file of the model, whose `name` may begin with a folder.
pub fn copy_file(model: &Path, out: &Path, name: &str) -> Result<(), FileError> {
    let folder = out.join(name).parent().map_or_else(|| out.to_owned(), Path::to_owned);
    fs::create_dir_all(&folder).with_path("create", &folder)?;
    put(out, name, &files::read(&model.join(name), limits::TOKENIZER)?)
}

pub fn put(out: &Path, name: &str, bytes: &[u8]) -> Result<(), FileError> {
    NewFile::write(&out.join(name), FileKind::NEW, bytes)
}

/// Call it last, because a folder with a manifest is a valid export.
pub fn put_manifest(out: &Path, manifest: &impl Serialize) -> Result<(), FileError> {
    let json = serde_json::to_string_pretty(manifest).map_err(io::Error::from);
    put(out, MANIFEST, (json.with_path("write", &out.join(MANIFEST))? + "\n").as_bytes())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;

    fn fill(folder: &ExportFolder<'_>) -> Result<(), FolderError> {
        folder.fill(|out| {
            fs::write(out.join(ARCHIVE), "").with_path("write", out)?;
            Ok(fs::write(out.join(MANIFEST), r#"{"tracewright": "0", "entry_points": []}"#)
                .with_path("write", out)?)
        })
    }

    /// Other programs can write into the folder while the network is compiled.
    #[test]
    fn what_came_since_it_was_asked_for_is_not_replaced() {
        let out = tempfile::tempdir().unwrap();
        let folder = ExportFolder::new(Path::new("model"), out.path(), [ARCHIVE]).unwrap();
        let theirs = out.path().join("config.json");
        fs::write(&theirs, "theirs").unwrap();
        assert!(matches!(fill(&folder), Err(FolderError::Foreign(path)) if path == theirs));
        assert_eq!(fs::read_to_string(&theirs).unwrap(), "theirs");
        assert_eq!(fs::read_dir(&out).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_removed_is_known_by_the_lock() {
        let out = tempfile::tempdir().unwrap();
        let folder = ExportFolder::new(Path::new("model"), out.path(), [ARCHIVE]).unwrap();
        fill(&folder).unwrap();
        // No file has this name now.
        let odd = out.path().join(TEXT);
        fs::create_dir(&odd).unwrap();
        assert!(matches!(fill(&folder), Err(FolderError::File(_))));
        assert!(!out.path().join(MANIFEST).exists() && FolderLock::was_taken(out.path()));
        fs::remove_dir(&odd).unwrap();
        fill(&folder).unwrap();
        assert!(!FolderLock::was_taken(out.path()));
    }
}
