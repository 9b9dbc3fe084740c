//! A cache of compiled modules on disk, which finds a module by a hash of the compiler's input.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::leftovers::sweep;
use crate::{FileKind, NewFile};
use errors::{FileError, WithPath as _};

/// Compiled modules in a folder.
///
/// An entry is a module and its hash, written atomically and checked when read. So an invalid module is never
/// returned, even if the disk is shared or failing, or a compiler wrote a damaged one.
#[derive(Clone, Debug)]
pub struct ModuleCache {
    pub dir: PathBuf,
}

impl ModuleCache {
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    pub fn create(&self) -> Result<(), FileError> {
        fs::create_dir_all(&self.dir).with_path("create", &self.dir)
    }

    pub fn path(&self, key: &str, extension: &str) -> PathBuf {
        self.dir.join(key).with_extension(extension)
    }

    /// `None` if the entry is missing or damaged. A hit removes temporary files of killed runs, because no
    /// compilation does.
    pub fn load(&self, key: &str) -> Result<Option<Vec<u8>>, FileError> {
        let path = self.path(key, "module");
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.with_path("read", &path)?,
        };
        let Some((hash, module)) = bytes.split_at_checked(blake3::OUT_LEN) else { return Ok(None) };
        if blake3::hash(module).as_bytes() != hash {
            return Ok(None);
        }
        sweep(&self.dir);
        Ok(Some(module.to_vec()))
    }

    pub fn store(&self, key: &str, module: &[u8]) -> Result<(), FileError> {
        let entry = [blake3::hash(module).as_bytes(), module].concat();
        NewFile::write(&self.path(key, "module"), FileKind::CACHED, &entry)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn a_module_that_is_found_removes_what_killed_runs_left() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ModuleCache::new(folder.path());
        cache.store("key", b"module").unwrap();
        let left = folder.path().join(".tracewright-old.partial");
        fs::create_dir(&left).unwrap();
        fs::write(left.join("module.mlir"), "text").unwrap();
        assert_eq!(cache.load("other").unwrap(), None);
        assert!(left.exists());
        assert_eq!(cache.load("key").unwrap().unwrap(), b"module");
        assert!(!left.exists());
    }
}
