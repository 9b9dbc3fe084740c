//! How far a long operation is, told chunk by chunk.

use std::ops::ControlFlow;
use std::path::Path;

use crate::ArchiveError;

/// Bytes hashed, written and reported at a time: small enough to stay in a core's cache from one to the next.
pub(crate) const CHUNK: usize = 1 << 20;

/// How far a long operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of data done.
    pub done: u64,
    /// Bytes of data in all.
    pub total: u64,
}

/// Called after every chunk; `Break` stops the operation, which then leaves nothing behind.
pub type Watch<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// Counts bytes and asks whether to go on.
pub(crate) struct Tracker<'p, 'w> {
    path: &'p Path,
    progress: Progress,
    watch: Option<Watch<'w>>,
}

impl<'p, 'w> Tracker<'p, 'w> {
    pub(crate) fn new(path: &'p Path, total: u64, watch: Option<Watch<'w>>) -> Self {
        Self { path, progress: Progress { done: 0, total }, watch }
    }

    pub(crate) fn advance(&mut self, bytes: usize) -> Result<(), ArchiveError> {
        self.progress.done += bytes as u64;
        match self.watch.as_mut().map(|watch| watch(self.progress)) {
            Some(ControlFlow::Break(())) => Err(ArchiveError::Cancelled { path: self.path.into() }),
            _ => Ok(()),
        }
    }
}
