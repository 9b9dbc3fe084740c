//! Which rows a call serves, and with how many of their tokens.

mod budgeted;
mod together;

pub use budgeted::Budgeted;
pub use together::Together;

/// The work that a row waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowWork {
    /// Tokens that the network has still to see.
    pub tokens: usize,
    /// Whether the row is behind its prompt: each call that it takes part in gives it a token.
    pub decodes: bool,
    /// Whether a call can serve the row without the others. Otherwise a call computes as many positions in each row as its longest
    /// row has.
    pub alone: bool,
}

/// Decides what each call does. It changes when a text gets its tokens, and no token.
///
/// ```
/// use tracewright_generate::{Budgeted, RowWork, Schedule};
///
/// let prompt = RowWork { tokens: 500, decodes: false, alone: true };
/// let text = RowWork { tokens: 1, decodes: true, alone: true };
/// assert_eq!(Budgeted::new(64).plan(&[prompt, text, prompt]), [64, 1, 0]);
/// ```
pub trait Schedule {
    /// How many of its tokens each row should show in the next call. A call takes at most as many as its entry point does, and at
    /// least one row must show some.
    fn plan(&mut self, rows: &[RowWork]) -> Vec<usize>;
}
