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
    /// Whether the network has processed the prompt. After the prompt, each further network call
    /// produces a token.
    pub decodes: bool,
    /// Whether a network call can process the sequence without all others. If a network call must
    /// compute all sequences, it computes the same number of positions of each, and pads shorter
    /// ones.
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
    /// Returns, for each sequence, the number of tokens that the next network call processes. If a
    /// returned number is larger than the entry point supports, the network call processes fewer
    /// tokens. At least one returned number must be positive.
    fn plan(&mut self, sequences: &[SequenceWork]) -> Vec<usize>;
}
