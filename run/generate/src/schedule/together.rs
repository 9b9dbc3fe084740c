//! A schedule that processes all pending tokens in one network call.

use super::{Schedule, SequenceWork};

/// Calls process all pending tokens: prompts in the fewest calls, while generating sequences wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct Together;

impl Schedule for Together {
    fn plan(&mut self, sequences: &[SequenceWork]) -> Vec<usize> {
        sequences.iter().map(|one| one.tokens).collect()
    }
}
