//! Checks whether two paths name the same file, and locks a folder for the run that writes into the folder.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use errors::{FileError, WithPath as _};
use same_file::Handle;

/// Also for symbolic and hard links to the files.
pub fn is_one_of(path: &Path, files: impl IntoIterator<Item = impl AsRef<Path>>) -> bool {
    // Only regular files are opened, because opening a pipe might wait forever.
    let open = |path: &Path| path.is_file().then(|| Handle::from_path(path).ok()).flatten();
    let Some(path) = open(path) else { return false };
    files.into_iter().any(|file| open(file.as_ref()).is_some_and(|file| file == path))
}

/// Locks a folder for one run by a file. If the process ends early, the system releases it.
pub struct FolderLock {
    path: PathBuf,
    _file: File,
    stays: bool,
}

impl FolderLock {
    const NAME: &str = ".tracewright-lock";

    /// Whether any run's lock file is there, even of a run that ended without removing it.
    pub fn was_taken(folder: &Path) -> bool {
        folder.join(Self::NAME).exists()
    }

    /// `None` if another run has locked the folder.
    pub fn take(folder: &Path) -> Result<Option<Self>, FileError> {
        let path = folder.join(Self::NAME);
        let file = File::options().create(true).append(true).open(&path).with_path("create", &path)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(None),
            // If the file system supports no locks, the folder is not locked.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            locked => locked.map_err(io::Error::from).with_path("lock", &path)?,
        }
        // After this run opened the lock file, the previous run may have removed the file, and
        // another run may have created a new lock file.
        let ours = file.try_clone().and_then(Handle::from_file).with_path("lock", &path)?;
        let is_there = Handle::from_path(&path).is_ok_and(|there| there == ours);
        // `Self` is created only if the lock file is ours, because dropping `Self` removes the lock
        // file.
        Ok(is_there.then(|| Self { path, _file: file, stays: false }))
    }

    /// Unlocks, but keeps the file, so that [`was_taken`](Self::was_taken) stays true.
    pub fn leave(mut self) {
        self.stays = true;
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // A lock file that remains is empty, and the next run locks it again.
        if !self.stays {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_locked_once() {
        let folder = tempfile::tempdir().unwrap();
        let lock = FolderLock::take(folder.path()).unwrap();
        assert!(lock.is_some() && FolderLock::was_taken(folder.path()));
        assert!(FolderLock::take(folder.path()).unwrap().is_none());
        drop(lock);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        FolderLock::take(folder.path()).unwrap().unwrap().leave();
        assert!(FolderLock::was_taken(folder.path()));
        assert!(FolderLock::take(folder.path()).unwrap().is_some());
    }

    /// A run that unlocks the folder removes the lock file. When a run removes its lock file,
    /// another run may already have opened the file.
    #[test]
    fn of_many_at_once_one_has_the_folder() {
        use std::sync::atomic::{AtomicUsize, Ordering};

        let folder = tempfile::tempdir().unwrap();
        let (holders, taken) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let Some(lock) = FolderLock::take(folder.path()).unwrap() else { continue };
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        holders.fetch_sub(1, Ordering::SeqCst);
                        taken.fetch_add(1, Ordering::SeqCst);
                        drop(lock);
                    }
                });
            }
        });
        assert!(taken.into_inner() > 4);
    }
}
