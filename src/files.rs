//! Files that appear whole or not at all.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use errors::{FileError, WithPath as _};
use tempfile::NamedTempFile;

/// A file that appears at its path when it is published, and leaves nothing behind when it is not.
pub struct NewFile {
    path: PathBuf,
    partial: NamedTempFile,
}

impl NewFile {
    /// Begins the file at `path`, beside it and under another name.
    ///
    /// # Errors
    /// If the folder is not there or cannot be written.
    pub fn begin(path: &Path) -> Result<Self, FileError> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".tracewright-").suffix(".partial");
        // What an ordinary new file would get.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        let partial = builder.tempfile_in(folder).with_path("create", path)?;
        Ok(Self { path: path.into(), partial })
    }

    /// The file at `path` with this content.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(path: &Path, content: &[u8]) -> Result<(), FileError> {
        let mut file = Self::begin(path)?;
        file.partial.write_all(content).with_path("write", path)?;
        file.publish()
    }

    /// Where it is written until it is published.
    pub fn partial(&self) -> &Path {
        self.partial.path()
    }

    /// Lets the file appear, replacing what was there.
    ///
    /// # Errors
    /// If what was written does not reach the disk.
    pub fn publish(self) -> Result<(), FileError> {
        let synced = self.partial.as_file().sync_all();
        let published = synced.and_then(|()| Ok(self.partial.persist(&self.path)?));
        published.map(drop).with_path("publish", &self.path)
    }
}
