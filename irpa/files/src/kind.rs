use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// The kind of an output file, such as a parameter archive. An output file may replace an empty
/// file, or a file of the same kind.
#[derive(Clone, Copy, Debug)]
pub struct FileKind {
    /// The name of the file kind in messages, such as `a parameter archive`.
    pub name: &'static str,
    /// Whether a file with the given first bytes has the file kind; at most [`FileKind::HEAD`]
    /// bytes are given.
    pub is: fn(&[u8]) -> bool,
}

impl FileKind {
    /// The number of bytes at the start of a file that determine the kind of the file.
    pub const HEAD: u64 = 1 << 20;

    /// The kind of a new file that must not replace any file, not even an empty file.
    pub const NEW: Self = Self { name: "", is: |_| false };

    /// The kind of files in a folder into which only Tracewright writes. A new file in
    /// Tracewright's cache replaces any existing file, even a damaged file.
    pub const CACHED: Self = Self { name: "a file of the cache", is: |_| true };

    /// A file that contains a sequence of tokens, and the sequence's KV cache.
    pub const SEQUENCE: Self = Self { name: "a saved sequence", is: |head| head.starts_with(b"TWSEQ") };

    /// Checks that the regular file at `target` may be replaced. `path` is the path that the caller
    /// requested, which can be a link to `target`.
    pub(crate) fn check(self, path: &Path, target: &Path) -> io::Result<()> {
        let mut head = Vec::new();
        File::open(target)?.take(Self::HEAD).read_to_end(&mut head)?;
        if (self.is)(&head) || (head.is_empty() && !self.name.is_empty()) {
            return Ok(());
        }
        let is_link = path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink());
        let refused = NotReplaced { leads_to: is_link.then(|| target.to_owned()), expected: self.name };
        Err(io::Error::new(io::ErrorKind::AlreadyExists, refused))
    }
}

/// An existing file is not replaced, because its kind differs from the kind of the new file.
#[derive(Debug)]
pub struct NotReplaced {
    /// The target of the link, if the requested path is a link.
    pub leads_to: Option<PathBuf>,
    /// The name of the kind of file that the new file may replace. The name is empty if the new
    /// file may replace no existing file.
    pub expected: &'static str,
}

impl fmt::Display for NotReplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.leads_to, self.expected) {
            (Some(target), "") => write!(f, "it is a link to `{}`", target.display()),
            (Some(target), expected) => {
                write!(f, "it is a link to `{}`, which is not {expected}", target.display())
            }
            (None, "") => f.write_str("it already exists"),
            (None, expected) => write!(f, "it is not {expected}"),
        }?;
        f.write_str("; write to another path, or move the existing file")
    }
}

impl std::error::Error for NotReplaced {}
