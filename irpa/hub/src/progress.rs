//! The progress of a download.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched<'a> {
    pub file: &'a str,
    /// The number of bytes that have arrived so far, in all files of the download.
    pub done: u64,
    /// Bytes of all files.
    pub total: u64,
}
