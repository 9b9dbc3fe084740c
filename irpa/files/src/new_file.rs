use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use errors::{FileError, WithPath as _};

use crate::FileKind;
use crate::leftovers::Scratch;
use crate::read::regular;

/// Appears at its path only when published; otherwise its temporary file is removed.
pub struct NewFile {
    asked: PathBuf,
    path: PathBuf,
    kind: FileKind,
    partial: PathBuf,
    file: File,
    _folder: Scratch,
}

impl NewFile {
    /// In a temporary folder next to `path`. If that is a link, publishing replaces its target.
    pub fn begin(path: &Path, kind: FileKind) -> Result<Self, FileError> {
        let asked = path.to_owned();
        let path = replaced(path, kind)?;
        let begin = || {
            let folder = Scratch::new(folder(&path))?;
            let partial = folder.path().join("file");
            let asked = asked.clone();
            Ok(Self {
                asked,
                path: path.clone(),
                kind,
                file: File::create(&partial)?,
                partial,
                _folder: folder,
            })
        };
        begin().with_path("create", &path)
    }

    pub fn write(path: &Path, kind: FileKind, content: &[u8]) -> Result<(), FileError> {
        Self::begin(path, kind)?.publish_as(content)
    }

    /// Valid until the file is published.
    pub fn partial(&self) -> &Path {
        &self.partial
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Writes the content, and publishes the file.
    pub fn publish_as(mut self, content: &[u8]) -> Result<(), FileError> {
        self.file.write_all(content).with_path("write", &self.path)?;
        self.publish()
    }

    /// Moves the file to its path, where it may replace one of the same kind.
    pub fn publish(self) -> Result<(), FileError> {
        let Self { asked, path, kind, partial, file, .. } = &self;
        let synced = || {
            // The caller may have put another file at the temporary path, which only the file's
            // owner can read.
            let written = File::open(partial)?;
            written.set_permissions(file.metadata()?.permissions())?;
            written.sync_all()
        };
        synced().with_path("write", path)?;
        // Checks the path again, because hours may have passed since the first check.
        let path = &replaced(path, *kind).map_err(|error| FileError { path: asked.clone(), ..error })?;
        fs::rename(partial, path).with_path("publish", path)?;
        // The name of the file must survive a power cut, so the folder is synced. Only Unix can
        // open a folder to sync the folder.
        let named =
            if cfg!(unix) { File::open(folder(path)).and_then(|folder| folder.sync_all()) } else { Ok(()) };
        named.with_path("publish", path)
    }
}

/// Checks that the file may be replaced.
fn replaced(path: &Path, kind: FileKind) -> Result<PathBuf, FileError> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(path.to_owned()),
        Err(error) => Err(error).with_path("create", path),
        Ok(_) => {
            let target = regular(path).and_then(|()| path.canonicalize());
            let target = target.and_then(|target| kind.check(path, &target).map(|()| target));
            target.with_path("replace", path)
        }
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

    const WORDS: FileKind = FileKind { name: "a word", is: |head| head.iter().all(u8::is_ascii_lowercase) };

    #[test]
    fn nothing_is_replaced_but_a_file_of_the_kind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let refused = |kind| NewFile::write(&path, kind, b"new").unwrap_err().source.to_string();
        for (content, words) in
            [("old", None), ("", None), ("12", Some("it is not a word; write to another path"))]
        {
            fs::write(&path, content).unwrap();
            let refused = NewFile::write(&path, WORDS, b"new").err().map(|error| error.source.to_string());
            let expected = words.map(|words| format!("{words}, or move the existing file"));
            assert_eq!(refused, expected, "{content:?}");
            let expected = if words.is_some() { content } else { "new" };
            assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        }
        fs::write(&path, "").unwrap();
        assert!(refused(FileKind::NEW).starts_with("it already exists; "));
        // A file that appears after `begin` is kept, too.
        let new = NewFile::begin(&path, WORDS).unwrap();
        fs::write(&path, "12").unwrap();
        let error = new.publish_as(b"new").unwrap_err();
        assert!(error.source.get_ref().unwrap().is::<crate::NotReplaced>(), "{error:?}");
        assert_eq!(
            (fs::read_to_string(&path).unwrap(), fs::read_dir(&folder).unwrap().count()),
            ("12".into(), 1)
        );
        #[cfg(unix)]
        {
            let link = folder.path().join("link");
            std::os::unix::fs::symlink("file", &link).unwrap();
            let error = NewFile::write(&link, WORDS, b"new").unwrap_err().source.to_string();
            let target = path.canonicalize().unwrap();
            assert!(
                error.starts_with(&format!("it is a link to `{}`, which is not a word", target.display()))
            );
        }
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "old").unwrap();
        let content = || fs::read_to_string(&path).unwrap();
        let other = NewFile::begin(&path, WORDS).unwrap();
        let mut new = NewFile::begin(&path, WORDS).unwrap();
        new.file.write_all(b"half").unwrap();
        assert_eq!(content(), "old");
        // Another writer may rename a file of its own to the temporary path.
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
