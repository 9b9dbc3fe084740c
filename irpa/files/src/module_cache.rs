//! A cache of compiled modules on disk, which finds a module by a hash of the compiler's input.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::leftovers::sweep;
use crate::{FileKind, NewFile};
use errors::{FileError, WithPath as _};

/// A cache of compiled modules in a folder.
///
/// A cache entry consists of a module and the module's hash. The cache writes an entry atomically,
/// and checks the hash when reading the entry. The cache never returns an invalid module, even if
/// the disk is shared or failing, or if a compiler wrote a damaged module.
#[derive(Clone, Debug)]
pub struct ModuleCache {
    /// The folder of the cache, which [`create`](Self::create) creates.
    pub dir: PathBuf,
}

impl ModuleCache {
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Creates the folder.
    pub fn create(&self) -> Result<(), FileError> {
        fs::create_dir_all(&self.dir).with_path("create", &self.dir)
    }

    /// Returns the path of the file `key` with the given extension in the cache folder.
    pub fn path(&self, key: &str, extension: &str) -> PathBuf {
        self.dir.join(key).with_extension(extension)
    }

    /// Returns the module with the given key, or `None` if the cache entry is missing or damaged. If the
    /// module is found, the function removes the temporary files of killed runs, because nothing is
    /// compiled that would remove them.
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

    /// Stores a compiled module in the cache under a key.
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
