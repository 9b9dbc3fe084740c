//! Types that all crates use for errors. One type adds a file name to an I/O error, and another
//! type displays the causes of an error.
//!
//! The message of an error never contains the message of the error's cause. [`WithCauses`] displays
//! the message of the error and the message of each cause exactly once.

use std::error::Error;
use std::fmt;
use std::io;
use std::iter::successors;
use std::path::{Path, PathBuf};

/// The operating system rejected an operation on a file or folder.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} `{}`", .path.display())]
pub struct FileError {
    /// For example `read`, `create` or `create a file in`.
    pub action: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

pub trait WithPath<T> {
    fn with_path(self, action: &'static str, path: &Path) -> Result<T, FileError>;
}

impl<T> WithPath<T> for io::Result<T> {
    fn with_path(self, action: &'static str, path: &Path) -> Result<T, FileError> {
        self.map_err(|source| FileError { action, path: path.to_owned(), source })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Such as `model.layers.*.self_attn.q_proj`, if known.
    pub path: String,
    /// The Rust file, relative to the parent folder of the crate, such as `models/src/llama.rs`.
    pub file: String,
    /// From 1.
    pub line: u32,
}

/// Cuts a text after `most` characters. If characters were cut, the function appends an ellipsis.
pub fn shortened(mut text: String, most: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(most) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Each cause is on a separate line.
pub struct WithCauses<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for WithCauses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.0.to_string();
        f.write_str(&said)?;
        for cause in successors(self.0.source(), |&cause| cause.source()) {
            // The alternate form is the one in which a template engine shows the line that failed.
            let cause = format!("{cause:#}");
            // Other people's errors often repeat their source.
            if !said.contains(&cause) {
                write!(f, "\n  because: {cause}")?;
            }
            said = cause;
        }
        Ok(())
    }
}

/// The most items that a message lists; the error value has all.
pub const LISTED: usize = 50;

/// At most [`LISTED`] items on separate lines, then the number of omitted ones.
pub struct Listed<'a, T>(pub &'a [T]);

impl<T: fmt::Display> fmt::Display for Listed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(LISTED).try_for_each(|item| write!(f, "\n  {item}"))?;
        match self.0.len().saturating_sub(LISTED) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

/// Escapes control characters, except line breaks and tabs: untrusted names can contain control sequences.
pub fn escaped(text: &str) -> String {
    let is_plain = |c: char| !c.is_control() || c == '\n' || c == '\t';
    text.chars().fold(String::with_capacity(text.len()), |mut shown, c| {
        if is_plain(c) {
            shown.push(c)
        } else {
            shown.extend(c.escape_debug())
        }
        shown
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_ends_and_a_terminal_obeys_nobody() {
        let listed = |n: usize| Listed(&(0..n).collect::<Vec<_>>()).to_string();
        assert_eq!(listed(2), "\n  0\n  1");
        assert!(listed(50).ends_with("\n  49"));
        assert!(listed(1000).ends_with("\n  49\n  and 950 more"));
        assert_eq!(escaped("a\u{1b}[31m\r\n\té\u{9b}"), "a\\u{1b}[31m\\r\n\té\\u{9b}");
    }

    #[test]
    fn a_cause_stands_behind_its_error_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("the model has no configuration file")]
        struct Outer(#[from] FileError);

        let refused: io::Result<()> = Err(io::Error::other("the disk is on fire"));
        let error = Outer::from(refused.with_path("read", Path::new("a/config.json")).unwrap_err());
        let shown = "the model has no configuration file\n  because: cannot read `a/config.json`\n  because: the disk is on fire";
        assert_eq!(WithCauses(&error).to_string(), shown);
    }

    #[test]
    fn a_cause_that_the_message_repeats_stands_there_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("invalid header: {source}")]
        struct Stranger {
            source: io::Error,
        }

        let error = Stranger { source: io::Error::other("no bracket") };
        assert_eq!(WithCauses(&error).to_string(), "invalid header: no bracket");
    }

    #[test]
    fn what_succeeds_stays_as_it_is() {
        assert_eq!(Ok(3).with_path("read", Path::new("a")).unwrap(), 3);
    }
}
