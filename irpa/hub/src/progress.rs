//! The progress of a download.

/// The progress of a download from the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched<'a> {
    /// The name of the file that is being downloaded.
    pub file: &'a str,
    /// The number of bytes that have arrived so far, in all files of the download.
    pub done: u64,
    /// The total size of all files of the download, in bytes.
    pub total: u64,
}
