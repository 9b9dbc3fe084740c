//! `--print-commands` prints the equivalent commands of IREE's own tools.

#[cfg(feature = "iree")]
mod calls;

#[cfg(feature = "iree")]
pub use calls::{call, compile};

/// A command line, quoted for a shell.
pub fn line<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    // A word with a zero byte is no argument of any program.
    shlex::try_join(words).unwrap_or_default()
}
