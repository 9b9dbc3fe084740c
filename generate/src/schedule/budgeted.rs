//! Keeps calls short while a text waits for its next token.

use super::{RowWork, Schedule};

/// A call processes every text that is being continued, and a piece of one prompt. Therefore a text never
/// waits for more than one piece, and prompts get their first token one after another.
///
/// If all rows share a call, prompts are read in pieces only while a text is continued, and the budget is divided among all rows.
#[derive(Clone, Copy, Debug)]
pub struct Budgeted {
    positions: usize,
    /// The row of the batch whose prompt is being read.
    reads: usize,
}

impl Budgeted {
    /// Creates a schedule with pieces of at most this many positions.
    pub fn new(positions: usize) -> Self {
        Self { positions, reads: 0 }
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
        let positions = self.positions.max(1);
        if !rows.iter().all(|row| row.alone) {
            let most = match rows.iter().any(|row| row.decodes && row.tokens > 0) {
                true => (positions / rows.len().max(1)).max(1),
                false => usize::MAX,
            };
            return rows.iter().map(|row| row.tokens.min(most)).collect();
        }
        // One token is served beside those of the texts.
        let waits = |row: &RowWork| !row.decodes && row.tokens > 1;
        // The same prompt until its end, then the next one behind it.
        let mut next = (self.reads..rows.len()).chain(0..self.reads.min(rows.len()));
        self.reads = next.find(|&row| waits(&rows[row])).unwrap_or(self.reads);
        let planned = |(i, row): (usize, &RowWork)| match waits(row) {
            true if i == self.reads => row.tokens.min(positions),
            true => 0,
            false => row.tokens,
        };
        rows.iter().enumerate().map(planned).collect()
    }
}
