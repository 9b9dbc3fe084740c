//! Reports the progress of a long operation.

use std::ops::ControlFlow;
use std::path::Path;

use crate::ArchiveError;

/// Bytes that are hashed, written and reported together; they fit into the cache of one core.
pub(crate) const CHUNK: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub done: u64,
    pub total: u64,
}

/// Called after every chunk. `Break` stops the operation, which removes its unfinished file.
pub type Watch<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// Counts the processed bytes, and calls the progress callback.
pub struct Tracker<'p, 'w> {
    path: &'p Path,
    progress: Progress,
    watch: Option<Watch<'w>>,
}

impl<'p, 'w> Tracker<'p, 'w> {
    pub fn new(path: &'p Path, total: u64, watch: Option<Watch<'w>>) -> Self {
        Self { path, progress: Progress { done: 0, total }, watch }
    }

    /// Adds processed bytes. The error is [`ArchiveError::Cancelled`] if the callback stops the operation.
    pub fn advance(&mut self, bytes: usize) -> Result<(), ArchiveError> {
        self.progress.done += bytes as u64;
        match self.watch.as_mut().map(|watch| watch(self.progress)) {
            Some(ControlFlow::Break(())) => Err(ArchiveError::Cancelled { path: self.path.into() }),
            _ => Ok(()),
        }
    }
}
