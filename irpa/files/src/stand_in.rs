use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

/// A placeholder for a file that was not downloaded, or was downloaded only in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandIn {
    /// Left by git without git-lfs.
    LfsPointer,
    /// Downloaded instead of the file.
    HtmlPage,
    Empty,
}

impl StandIn {
    pub fn of(head: &[u8]) -> Option<Self> {
        let start = head.trim_ascii_start();
        let is_tag =
            |tag: &str| start.get(..tag.len()).is_some_and(|s| s.eq_ignore_ascii_case(tag.as_bytes()));
        match () {
            () if head.is_empty() => Some(Self::Empty),
            () if start.starts_with(b"version https://git-lfs") => Some(Self::LfsPointer),
            () if is_tag("<!doctype html") || is_tag("<html") => Some(Self::HtmlPage),
            () => None,
        }
    }

    /// Also how to get the file.
    pub fn what(self) -> &'static str {
        match self {
            Self::LfsPointer => {
                "a git-lfs pointer instead of the file; run `git lfs pull` in the original repository, or download the file again"
            }
            Self::HtmlPage => {
                "an HTML page instead of the file; download the file again, on the hub from `/resolve/` and not from `/blob/`"
            }
            Self::Empty => "empty; download the file again",
        }
    }

    /// Returns the error for a caller that tries to read a file but finds a placeholder.
    pub fn error(self) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, self)
    }
}

impl fmt::Display for StandIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it is {}", self.what())
    }
}

impl std::error::Error for StandIn {}

/// A broken link. The Hugging Face hub's tools store each download as a link into a folder `blobs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenLink(pub PathBuf);

impl BrokenLink {
    /// A link whose target does not exist.
    pub fn at(path: &Path) -> Option<Self> {
        match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::read_link(path).ok().map(Self),
            _ => None,
        }
    }

    pub(crate) fn error(self) -> io::Error {
        // The kind is not `NotFound`, because a caller that ignores a missing file must not ignore
        // a broken link.
        io::Error::new(io::ErrorKind::InvalidInput, self)
    }
}

impl fmt::Display for BrokenLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it is a link to `{}`, which is missing; download the file again", self.0.display())
    }
}

impl std::error::Error for BrokenLink {}

/// Whether a directory entry at the given path exists. A broken link is an existing directory entry.
pub fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_for_a_file_is_known_by_how_it_begins() {
        let cases: &[(&str, Option<StandIn>)] = &[
            ("version https://git-lfs.github.com/spec/v1\noid sha256:00", Some(StandIn::LfsPointer)),
            ("\n<!DOCTYPE html><html>", Some(StandIn::HtmlPage)),
            ("<HTML lang=en>", Some(StandIn::HtmlPage)),
            ("", Some(StandIn::Empty)),
            ("{}", None),
            ("<s>{{ messages }}", None),
            ("version 2", None),
        ];
        for (head, expected) in cases {
            assert_eq!(StandIn::of(head.as_bytes()), *expected, "{head}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_link_to_nothing_is_not_a_file_that_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        assert!(!is_there(&link) && BrokenLink::at(&link).is_none());
        std::os::unix::fs::symlink("../blobs/1", &link).unwrap();
        assert!(is_there(&link));
        assert_eq!(BrokenLink::at(&link), Some(BrokenLink("../blobs/1".into())));
        let error = crate::read(&link, 10).unwrap_err();
        assert!(error.source.get_ref().unwrap().is::<BrokenLink>(), "{error:?}");
        let output = crate::NewFile::write(&link, crate::FileKind::CACHED, b"x").unwrap_err();
        assert!(output.source.get_ref().unwrap().is::<BrokenLink>(), "{output:?}");
    }
}
