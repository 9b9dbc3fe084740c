//! A schedule that processes all unprocessed tokens in one network call.

use super::{RowWork, Schedule};

/// Each network call processes the unprocessed tokens of all rows of the batch. The schedule
/// processes prompts in the fewest network calls, but generating texts wait while a network call
/// processes a prompt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Together;

impl Schedule for Together {
    fn plan(&mut self, rows: &[RowWork]) -> Vec<usize> {
        rows.iter().map(|row| row.tokens).collect()
    }
}
