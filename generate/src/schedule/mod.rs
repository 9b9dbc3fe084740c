//! Decides which rows of the batch a call processes, and how many tokens of each row.

mod budgeted;
mod together;

pub use budgeted::Budgeted;
pub use together::Together;

/// The waiting tokens of a row of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowWork {
    /// The number of tokens that the network has not processed yet.
    pub tokens: usize,
    /// Whether the row has processed its prompt, so that each further call produces a token.
    pub decodes: bool,
    /// Whether a call can process this row without the other rows. Otherwise each call computes the same
    /// number of positions in all rows, and pads shorter rows.
    pub alone: bool,
}

/// Decides how many tokens of each row the next call processes. A schedule changes when a text gets its
/// tokens, but never which tokens.
///
/// ```
/// use tracewright_generate::{Budgeted, RowWork, Schedule};
///
/// let prompt = RowWork { tokens: 500, decodes: false, alone: true };
/// let text = RowWork { tokens: 1, decodes: true, alone: true };
/// assert_eq!(Budgeted::new(64).plan(&[prompt, text, prompt]), [64, 1, 0]);
/// ```
pub trait Schedule {
    /// Returns the number of tokens that the next call processes, for each row. A call processes at most as
    /// many tokens as its entry point takes. At least one row must get tokens.
    fn plan(&mut self, rows: &[RowWork]) -> Vec<usize>;
}
