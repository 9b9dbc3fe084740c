//! Removes the temporary files of runs that were killed. A temporary file has a special name and a lock. The
//! operating system releases the lock of a process that ends, so a temporary file without a lock is left over
//! from a killed run.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use errors::{FileError, WithPath as _};
use tempfile::TempDir;

const PREFIX: &str = ".tracewright-";
const SUFFIX: &str = ".partial";

/// A temporary folder, which dropping removes.
pub struct Scratch {
    folder: TempDir,
    _lock: Option<File>,
}

impl Scratch {
    /// Also removes those of killed runs.
    pub fn new_in(folder: &Path) -> Result<Self, FileError> {
        Self::new(folder).with_path("create a folder in", folder)
    }

    pub(crate) fn new(folder: &Path) -> io::Result<Self> {
        sweep(folder);
        loop {
            let made = tempfile::Builder::new().prefix(PREFIX).suffix(SUFFIX).tempdir_in(folder)?;
            // Only Unix can open a folder and lock it. If the file system has no locks, leftover
            // files are kept.
            if !cfg!(unix) {
                return Ok(Self { folder: made, _lock: None });
            }
            // Another run may remove the folder before this run locks the folder.
            let lock = match File::open(made.path()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            let _ = lock.lock();
            if made.path().exists() {
                return Ok(Self { folder: made, _lock: Some(lock) });
            }
        }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes temporary files of killed runs, except those that cannot be removed.
pub(crate) fn sweep(folder: &Path) {
    let entries = if cfg!(unix) { fs::read_dir(folder).ok() } else { None };
    for entry in entries.into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        let is_ours = name.starts_with(PREFIX) && name.ends_with(SUFFIX);
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        // The lock is held until the folder is removed. A run that has just created this folder
        // waits for the lock, and then creates another folder.
        if is_ours
            && is_folder
            && let Ok(lock) = File::open(&path)
            && lock.try_lock().is_ok()
        {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn nobody_loses_a_folder_to_who_sweeps_beside() {
        let folder = tempfile::tempdir().unwrap();
        let make = || {
            for _ in 0..200 {
                let scratch = Scratch::new_in(folder.path()).unwrap();
                fs::write(scratch.path().join("file"), "mine").unwrap();
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(make))));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }

    #[test]
    fn what_nobody_has_is_swept_and_what_somebody_has_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at(".tracewright-old.partial/inside")).unwrap();
        fs::create_dir(at("mine.partial")).unwrap();
        std::os::unix::fs::symlink(at("mine.partial"), at(".tracewright-link.partial")).unwrap();
        let first = Scratch::new_in(folder.path()).unwrap();
        let second = Scratch::new_in(folder.path()).unwrap();
        assert!(first.path().exists() && second.path().exists());
        drop((first, second));
        let mut left: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [".tracewright-link.partial", "mine.partial"]);
    }
}
