//! Creates folders, and removes the created folders again if the folders stay empty.

use std::fs;
use std::path::{Path, PathBuf};

use errors::{FileError, WithPath as _};

/// A new folder, with all parent folders that Tracewright created for the new folder.
#[derive(Debug)]
pub struct NewFolder {
    /// The folders that Tracewright created, beginning with the innermost folder.
    made: Vec<PathBuf>,
}

impl NewFolder {
    /// Creates the folder at `path`, and its missing parent folders.
    ///
    /// # Errors
    /// Returns an error if a folder cannot be created. After an error, the function removes all folders that
    /// it created.
    pub fn create(path: &Path) -> Result<Self, FileError> {
        let missing =
            path.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
        let folder = Self { made: missing.map(Path::to_owned).collect() };
        match fs::create_dir_all(path).with_path("create", path) {
            Ok(()) => Ok(folder),
            Err(error) => {
                folder.discard();
                Err(error)
            }
        }
    }

    /// Removes the folders that Tracewright created, if the folders are empty.
    pub fn discard(self) {
        // The caller has failed and reports its own error. A folder that remains is not worth
        // another message.
        let _ = self.made.iter().try_for_each(fs::remove_dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_goes_and_what_was_there_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (outer, inner) = (folder.path().join("a"), folder.path().join("a/b/c"));
        NewFolder::create(&inner).unwrap().discard();
        assert!(!outer.exists() && folder.path().exists());

        fs::create_dir(&outer).unwrap();
        NewFolder::create(&inner).unwrap().discard();
        assert!(outer.exists() && !outer.join("b").exists());

        let kept = NewFolder::create(&inner).unwrap();
        fs::write(outer.join("b/somebody's"), "").unwrap();
        kept.discard();
        assert!(!inner.exists() && outer.join("b/somebody's").exists());

        fs::write(outer.join("file"), "").unwrap();
        let error = NewFolder::create(&outer.join("file/b")).unwrap_err();
        assert!(error.to_string().contains("file/b"), "{error}");
    }
}
