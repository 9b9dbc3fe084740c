//! A schedule that keeps network calls short while sequences are generating.

use super::{Schedule, SequenceWork};

/// Each call processes the pending tokens of all generating sequences, and one chunk of one prompt. A
/// generating sequence waits for at most one chunk, and prompts are processed one after another. If calls
/// compute all sequences, the schedule divides the limit of positions among them, and splits prompts only
/// while a sequence generates.
#[derive(Clone, Copy, Debug)]
pub struct Budgeted {
    positions: usize,
    /// The index of the sequence whose prompt the network is processing.
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
    fn plan(&mut self, sequences: &[SequenceWork]) -> Vec<usize> {
        let positions = self.positions.max(1);
        if !sequences.iter().all(|one| one.alone) {
            let most = if sequences.iter().any(|one| one.decodes && one.tokens > 0) {
                (positions / sequences.len().max(1)).max(1)
            } else {
                usize::MAX
            };
            return sequences.iter().map(|one| one.tokens.min(most)).collect();
        }
        // A prompt with a single pending token joins the call of the generating sequences, so only
        // longer prompts wait.
        let waits = |one: &SequenceWork| !one.decodes && one.tokens > 1;
        // The schedule processes one prompt to its end, and then the next prompt that waits.
        let count = sequences.len();
        let mut next = (self.reads..count).chain(0..self.reads.min(count));
        self.reads = next.find(|&index| waits(&sequences[index])).unwrap_or(self.reads);
        let planned = |(i, one): (usize, &SequenceWork)| match waits(one) {
            true if i == self.reads => one.tokens.min(positions),
            true => 0,
            false => one.tokens,
        };
        sequences.iter().enumerate().map(planned).collect()
    }
}
