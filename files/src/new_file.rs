use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use errors::{FileError, WithPath as _};

use crate::leftovers::Scratch;
use crate::read::regular;

/// A file that appears at its path when it is published, and leaves nothing behind when it is not.
pub struct NewFile {
    path: PathBuf,
    partial: PathBuf,
    file: File,
    _folder: Scratch,
}

impl NewFile {
    /// Begins the file at `path`, in a folder beside it. Where a link stands, what it leads to is replaced.
    ///
    /// # Errors
    /// If the folder is not there or cannot be written, or what stands there is no regular file.
    pub fn begin(path: &Path) -> Result<Self, FileError> {
        let path = match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
            Err(error) => return Err(error).with_path("create", path),
            Ok(_) => regular(path).and_then(|()| path.canonicalize()).with_path("replace", path)?,
        };
        let begin = || {
            let folder = Scratch::new(folder(&path))?;
            let partial = folder.path().join("file");
            Ok(Self { path: path.clone(), file: File::create(&partial)?, partial, _folder: folder })
        };
        begin().with_path("create", &path)
    }

    /// The file at `path` with this content.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(path: &Path, content: &[u8]) -> Result<(), FileError> {
        Self::begin(path)?.publish_as(content)
    }

    /// Where it is written until it is published.
    pub fn partial(&self) -> &Path {
        &self.partial
    }

    /// What is written until it is published.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Lets the file appear with this content, replacing what was there.
    ///
    /// # Errors
    /// If the content does not reach the disk.
    pub fn publish_as(mut self, content: &[u8]) -> Result<(), FileError> {
        self.file.write_all(content).with_path("write", &self.path)?;
        self.publish()
    }

    /// Lets the file appear, replacing what was there.
    ///
    /// # Errors
    /// If what was written does not reach the disk.
    pub fn publish(self) -> Result<(), FileError> {
        let Self { path, partial, file, .. } = &self;
        let synced = || {
            // Who wrote under the partial name may have put a file of its own there, which only its owner can read.
            let written = File::open(partial)?;
            written.set_permissions(file.metadata()?.permissions())?;
            written.sync_all()
        };
        synced().with_path("write", path)?;
        fs::rename(partial, path).with_path("publish", path)?;
        // The name itself must survive a power cut. Only Unix can open a folder for that.
        let named =
            if cfg!(unix) { File::open(folder(path)).and_then(|folder| folder.sync_all()) } else { Ok(()) };
        named.with_path("publish", path)
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    #[cfg(unix)]
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "old").unwrap();
        let content = || fs::read_to_string(&path).unwrap();
        let other = NewFile::begin(&path).unwrap();
        let mut new = NewFile::begin(&path).unwrap();
        new.file.write_all(b"half").unwrap();
        assert_eq!(content(), "old");
        // As a writer does that publishes by itself.
        fs::write(folder.path().join("elsewhere"), "whole").unwrap();
        #[cfg(unix)]
        fs::set_permissions(folder.path().join("elsewhere"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(folder.path().join("elsewhere"), new.partial()).unwrap();
        new.publish().unwrap();
        assert_eq!(content(), "whole");
        let plain = folder.path().join("plain");
        fs::write(&plain, "").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions(), fs::metadata(&plain).unwrap().permissions());
        fs::remove_file(plain).unwrap();
        drop(other);
        assert_eq!((content(), fs::read_dir(&folder).unwrap().count()), ("whole".into(), 1));
    }
}
