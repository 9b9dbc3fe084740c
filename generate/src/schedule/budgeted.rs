//! Keeps calls short while a text waits for its next token.

use super::{RowWork, Schedule};

/// Each call processes all texts that are generating, and a piece of one prompt. So a text waits for at most one piece, and
/// prompts are read one after another.
///
/// Some networks compute all rows of the batch in each call. For such a network, a call divides its limit of positions among all
/// rows, and reads prompts in pieces only while a text is generating.
#[derive(Clone, Copy, Debug)]
pub struct Budgeted {
    positions: usize,
    /// The row of the batch whose prompt is being read.
    reads: usize,
}

impl Budgeted {
    /// Creates a schedule that reads at most this many positions of a prompt per call.
    pub fn new(positions: usize) -> Self {
        Self { positions, reads: 0 }
    }
}

impl Default for Budgeted {
    /// Uses the number of positions in one chunk of a prompt as the limit.
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
        // A row with one new token joins the call of the generating texts, so only longer prompts wait.
        let waits = |row: &RowWork| !row.decodes && row.tokens > 1;
        // Reads the same prompt until its end, and then the prompt in the next waiting row.
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
