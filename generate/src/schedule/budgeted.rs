//! Keeps calls short while a text waits for its next token.

use super::{RowWork, Schedule};

/// While a text is being continued, a call processes a limited number of positions. Prompts are read in
/// pieces, and no text waits for a whole chunk of every row. A call computes as many positions in each row of
/// the batch as its longest row has, so the limit is divided among all rows.
#[derive(Clone, Copy, Debug)]
pub struct Budgeted {
    positions: usize,
}

impl Budgeted {
    /// Creates a schedule whose calls have at most this many positions in all rows together, and at least one
    /// position in each row.
    pub fn new(positions: usize) -> Self {
        Self { positions }
    }
}

impl Default for Budgeted {
    /// The default limit is the number of positions in one chunk of a prompt.
    fn default() -> Self {
        Self::new(128)
    }
}

impl Schedule for Budgeted {
    fn plan(&mut self, rows: &[RowWork]) -> Vec<usize> {
        let most = match rows.iter().any(|row| row.decodes && row.tokens > 0) {
            true => (self.positions / rows.len().max(1)).max(1),
            false => usize::MAX,
        };
        rows.iter().map(|row| row.tokens.min(most)).collect()
    }
}
