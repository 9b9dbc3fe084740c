//! `--print-commands`: what IREE's own programs would be told to do the same.

#[cfg(feature = "iree")]
mod calls;

#[cfg(feature = "iree")]
pub use calls::{call, compile};

/// A command line as a shell takes it.
pub fn line<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    // A word with a zero byte is no argument of any program.
    shlex::try_join(words).unwrap_or_default()
}
