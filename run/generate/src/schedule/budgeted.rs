//! A schedule that keeps network calls short while texts are generating.

use super::{RowWork, Schedule};

/// Each network call processes the unprocessed tokens of all generating texts, and one chunk of one
/// prompt. A generating text waits for at most one chunk of a prompt before the text gets its next
/// token. The network processes the prompts one after another.
///
/// Some networks compute all rows of the batch in each network call. If a network computes all rows
/// in each call, the schedule divides the limit of positions among all rows of the batch. The
/// schedule splits prompts only while a text is generating.
#[derive(Clone, Copy, Debug)]
pub struct Budgeted {
    positions: usize,
    /// The row of the batch whose prompt the network is processing.
    reads: usize,
}

impl Budgeted {
    /// Creates a schedule in which a network call processes at most `positions` tokens of a prompt.
    pub fn new(positions: usize) -> Self {
        Self { positions, reads: 0 }
    }
}

impl Default for Budgeted {
    /// Creates a schedule in which a network call processes at most 128 tokens of a prompt.
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
        // A prompt with a single unprocessed token joins the call of the generating texts, so only
        // longer prompts wait.
        let waits = |row: &RowWork| !row.decodes && row.tokens > 1;
        // The schedule processes one prompt to its end, and then the prompt in the next row that
        // waits.
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
