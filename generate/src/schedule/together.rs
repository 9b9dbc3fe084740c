//! Everything at once.

use super::{RowWork, Schedule};

/// Each row shows all its tokens: prompts are read in the fewest calls, and texts wait for those.
#[derive(Clone, Copy, Debug, Default)]
pub struct Together;

impl Schedule for Together {
    fn plan(&mut self, rows: &[RowWork]) -> Vec<usize> {
        rows.iter().map(|row| row.tokens).collect()
    }
}
