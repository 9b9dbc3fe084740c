//! Creates folders, and removes the created folders again if the folders stay empty.

use std::fs;
use std::path::{Path, PathBuf};

use errors::{FileError, WithPath as _};

/// With all parent folders that were created for it.
#[derive(Debug)]
pub struct NewFolder {
    /// The innermost first.
    made: Vec<PathBuf>,
}

impl NewFolder {
    /// With missing parents. After an error, no created folder is left.
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

    /// Removes the created folders that are empty.
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
