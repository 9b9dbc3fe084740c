//! Short calls while somebody waits for the next token.

use super::{RowWork, Schedule};

/// While a text is continued, a call takes a budget of positions: prompts are read in pieces, and no text waits for a whole chunk of
/// every row. A call computes as many positions in each row as its longest row has, so the budget is divided among all rows.
#[derive(Clone, Copy, Debug)]
pub struct Budgeted {
    positions: usize,
}

impl Budgeted {
    /// Calls of at most this many positions in all rows together, and at least one in each.
    pub fn new(positions: usize) -> Self {
        Self { positions }
    }
}

impl Default for Budgeted {
    /// As many positions as one chunk of a prompt has.
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
