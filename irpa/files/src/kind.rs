use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// The kind of an output file, which may replace an empty file or one of the same kind.
#[derive(Clone, Copy, Debug)]
pub struct FileKind {
    /// In messages, such as `a parameter archive`.
    pub name: &'static str,
    /// Whether a file begins like this kind; gets at most [`FileKind::HEAD`] bytes.
    pub is: fn(&[u8]) -> bool,
}

impl FileKind {
    /// The first bytes, which determine the kind.
    pub const HEAD: u64 = 1 << 20;

    /// The kind of a new file that must not replace any file, not even an empty file.
    pub const NEW: Self = Self { name: "", is: |_| false };

    /// For folders into which only Tracewright writes: replaces any file, even a damaged one.
    pub const CACHED: Self = Self { name: "a file of the cache", is: |_| true };

    /// Tokens and their KV cache.
    pub const SEQUENCE: Self = Self { name: "a saved sequence", is: |head| head.starts_with(b"TWSEQ") };

    /// Whether the regular file at `target` may be replaced. The requested `path` can be a link to it.
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

#[derive(Debug)]
pub struct NotReplaced {
    pub leads_to: Option<PathBuf>,
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
