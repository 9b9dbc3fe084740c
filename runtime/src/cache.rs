//! A cache of compiled modules on disk, by content.

use std::fs;
use std::io;
use std::path::PathBuf;

use errors::{FileError, WithPath as _};
use files::{FileKind, NewFile};

/// A cache of compiled modules in a folder.
///
/// An entry consists of a module and its hash. It is published as a whole and checked when it is read. Thus a
/// cache on a shared or failing disk, or from a broken compiler, returns a valid module or none.
#[derive(Clone, Debug)]
pub struct ModuleCache {
    /// The folder, which is created when it is needed.
    pub dir: PathBuf,
}

impl ModuleCache {
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    pub(crate) fn create(&self) -> Result<(), FileError> {
        fs::create_dir_all(&self.dir).with_path("create", &self.dir)
    }

    pub(crate) fn path(&self, key: &str, extension: &str) -> PathBuf {
        self.dir.join(key).with_extension(extension)
    }

    /// The module with this key; `None` if it is missing or damaged.
    pub(crate) fn load(&self, key: &str) -> Result<Option<Vec<u8>>, FileError> {
        let path = self.path(key, "module");
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.with_path("read", &path)?,
        };
        let Some((hash, module)) = bytes.split_at_checked(blake3::OUT_LEN) else { return Ok(None) };
        Ok((blake3::hash(module).as_bytes() == hash).then(|| module.to_vec()))
    }

    /// Publishes the module with this key.
    pub(crate) fn store(&self, key: &str, module: &[u8]) -> Result<(), FileError> {
        let entry = [blake3::hash(module).as_bytes(), module].concat();
        NewFile::write(&self.path(key, "module"), FileKind::CACHED, &entry)
    }
}
