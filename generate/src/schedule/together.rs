//! Processes all waiting tokens in one call.

use super::{RowWork, Schedule};

/// Each row of the batch processes all its tokens: prompts are read in the fewest calls, and other texts wait
/// for these calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Together;

impl Schedule for Together {
    fn plan(&mut self, rows: &[RowWork]) -> Vec<usize> {
        rows.iter().map(|row| row.tokens).collect()
    }
}
