//! Files that appear whole or not at all.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

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
    pub fn begin(path: &Path) -> io::Result<Self> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".tracewright-").suffix(".partial");
        // What an ordinary new file would get.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        Ok(Self { path: path.into(), partial: builder.tempfile_in(folder)? })
    }

    /// Where it is written until it is published.
    pub fn partial(&self) -> &Path {
        self.partial.path()
    }

    /// What is written to.
    pub fn file(&mut self) -> &mut File {
        self.partial.as_file_mut()
    }

    /// Lets the file appear, replacing what was there.
    ///
    /// # Errors
    /// If what was written does not reach the disk.
    pub fn publish(self) -> io::Result<()> {
        self.partial.as_file().sync_all()?;
        self.partial.persist(&self.path).map_err(|error| error.error)?;
        Ok(())
    }
}
