//! Decides which sequences a network call processes, and how many tokens of each.

mod budgeted;
mod together;

pub use budgeted::Budgeted;
pub use together::Together;

/// The tokens of one sequence that the network has not processed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceWork {
    /// The number of these tokens.
    pub tokens: usize,
    /// Whether the prompt is processed, so that each further network call produces a token.
    pub decodes: bool,
    /// Whether a call can process the sequence alone. Otherwise all get equal positions, with padding.
    pub alone: bool,
}

/// Decides how many tokens of each sequence the next network call processes. A schedule affects when
/// a sequence gets its tokens, but never which tokens it gets.
///
/// ```
/// use tracewright_generate::{Budgeted, Schedule, SequenceWork};
///
/// let prompt = SequenceWork { tokens: 500, decodes: false, alone: true };
/// let answer = SequenceWork { tokens: 1, decodes: true, alone: true };
/// assert_eq!(Budgeted::new(64).plan(&[prompt, answer, prompt]), [64, 1, 0]);
/// ```
pub trait Schedule {
    /// Returns each sequence's number of tokens in the next call, at least one of them positive. More tokens
    /// than the entry point supports are left for later calls.
    fn plan(&mut self, sequences: &[SequenceWork]) -> Vec<usize>;
}
