//! Decides which rows of the batch a network call processes, and how many tokens of each row.

mod budgeted;
mod together;

pub use budgeted::Budgeted;
pub use together::Together;

/// The unprocessed tokens of one row of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowWork {
    /// The number of tokens in the row that the network has not processed yet.
    pub tokens: usize,
    /// Whether the network has processed the prompt in the row of the batch. After the prompt, each
    /// further network call produces a token.
    pub decodes: bool,
    /// Whether a network call can process the row of the batch alone, without all other rows. If a
    /// network call must compute all rows, the call computes the same number of positions in each
    /// row, and pads shorter rows.
    pub alone: bool,
}

/// Decides how many tokens of each row the next network call processes. A schedule affects when a
/// text gets its tokens, but never affects which tokens the text gets.
///
/// ```
/// use tracewright_generate::{Budgeted, RowWork, Schedule};
///
/// let prompt = RowWork { tokens: 500, decodes: false, alone: true };
/// let text = RowWork { tokens: 1, decodes: true, alone: true };
/// assert_eq!(Budgeted::new(64).plan(&[prompt, text, prompt]), [64, 1, 0]);
/// ```
pub trait Schedule {
    /// Returns, for each row of the batch, the number of tokens that the next network call
    /// processes. If a returned number is larger than the entry point supports, the network call
    /// processes fewer tokens. At least one returned number must be positive.
    fn plan(&mut self, rows: &[RowWork]) -> Vec<usize>;
}
