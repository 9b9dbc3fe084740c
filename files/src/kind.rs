use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// What a writer writes, and so what it may replace: a file of the same kind, or an empty one.
#[derive(Clone, Copy, Debug)]
pub struct FileKind {
    /// As messages name it: `a parameter archive`.
    pub name: &'static str,
    /// Whether a file that begins with these bytes, at most [`FileKind::HEAD`] of them, is of the kind.
    pub is: fn(&[u8]) -> bool,
}

impl FileKind {
    /// Bytes of a file that tell its kind.
    pub const HEAD: u64 = 1 << 20;

    /// For a writer that replaces nothing, not even an empty file.
    pub const NEW: Self = Self { name: "", is: |_| false };

    /// For files in a folder that only Tracewright writes, under names that it makes: whatever has such a name is
    /// replaced, damaged files included.
    pub const CACHED: Self = Self { name: "a file of the cache", is: |_| true };

    /// A sequence of tokens with its state.
    pub const SEQUENCE: Self = Self { name: "a saved sequence", is: |head| head.starts_with(b"TWSEQ") };

    /// Whether the regular file at `target` may be replaced. `path` is its name, and may be a link.
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

/// Why a file is not replaced: it is of another kind than the one that would be written.
#[derive(Debug)]
pub struct NotReplaced {
    /// What the name is a link to.
    pub leads_to: Option<PathBuf>,
    /// The kind that may be replaced; empty if none may.
    pub expected: &'static str,
}

impl fmt::Display for NotReplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.leads_to, self.expected) {
            (Some(target), "") => write!(f, "it is a link to `{}`", target.display()),
            (Some(target), expected) => {
                write!(f, "it is a link to `{}`, which is not {expected}", target.display())
            }
            (None, "") => f.write_str("it is there already"),
            (None, expected) => write!(f, "it is not {expected}"),
        }?;
        f.write_str("; write elsewhere, or move the file away")
    }
}

impl std::error::Error for NotReplaced {}
