//! Processes all waiting tokens in one call.

use super::{RowWork, Schedule};

/// Each call processes the waiting tokens of all rows. So prompts need the fewest calls, but generating texts
/// wait while a call reads a prompt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Together;

impl Schedule for Together {
    fn plan(&mut self, rows: &[RowWork]) -> Vec<usize> {
        rows.iter().map(|row| row.tokens).collect()
    }
}
