//! A schedule that processes all pending tokens in one network call.

use super::{Schedule, SequenceWork};

/// Each network call processes the pending tokens of all sequences. The schedule processes prompts
/// in the fewest network calls, but generating sequences wait while a network call processes a
/// prompt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Together;

impl Schedule for Together {
    fn plan(&mut self, sequences: &[SequenceWork]) -> Vec<usize> {
        sequences.iter().map(|one| one.tokens).collect()
    }
}
