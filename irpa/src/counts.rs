//! Counts the work that a command must do only once. Only tests read the numbers.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of GGUF files that this process has parsed, completely or only the keys.
pub static GGUF_PARSES: AtomicUsize = AtomicUsize::new(0);

/// By this process, for the tests.
pub static GGUF_RENAMINGS: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn count(counter: &AtomicUsize) {
    counter.fetch_add(1, Ordering::Relaxed);
}
