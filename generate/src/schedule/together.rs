//! A schedule that processes all unprocessed tokens in one call.

use super::{RowWork, Schedule};

/// Each call processes the unprocessed tokens of all rows of the batch. So prompts need the fewest
/// calls, but generating texts wait while a call processes a prompt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Together;

impl Schedule for Together {
    fn plan(&mut self, rows: &[RowWork]) -> Vec<usize> {
        rows.iter().map(|row| row.tokens).collect()
    }
}
