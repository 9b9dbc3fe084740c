//! Decides which rows of the batch a call processes, and how many tokens of each row.

mod budgeted;
mod together;

pub use budgeted::Budgeted;
pub use together::Together;

/// The tokens that a row of the batch waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowWork {
    /// The number of tokens that the network has not processed yet.
    pub tokens: usize,
    /// Whether the row has finished its prompt, so that each call that processes the row produces a token.
    pub decodes: bool,
    /// Whether a call can serve the row without the other rows. Otherwise a call computes as many positions
    /// in each row as its longest row has.
    pub alone: bool,
}

/// Decides which tokens each call processes. A schedule changes when a text gets its tokens, but never
/// changes the tokens.
///
/// ```
/// use tracewright_generate::{Budgeted, RowWork, Schedule};
///
/// let prompt = RowWork { tokens: 500, decodes: false, alone: true };
/// let text = RowWork { tokens: 1, decodes: true, alone: true };
/// assert_eq!(Budgeted::new(64).plan(&[prompt, text, prompt]), [64, 1, 0]);
/// ```
pub trait Schedule {
    /// The number of tokens of each row that the next call processes. A call processes at most as many tokens
    /// as its entry point takes, and at least one row must have tokens.
    fn plan(&mut self, rows: &[RowWork]) -> Vec<usize>;
}
