//! Reuses the state (such as the KV cache) of a prefix that two texts have in common. If two texts
//! begin with the same tokens, Tracewright copies the state of these tokens instead of computing
//! this state again.

use std::ops::Range;

use crate::entry::KeptTensor;
use crate::executor::Executor;
use crate::row::Row;
use crate::sequences::Sequences;
use crate::snapshot::{KeptRow, Snapshot, keeps_all};
use crate::{GenerateError, Network, SavedSequence};

/// The largest number of snapshots that Tracewright keeps for a row of the batch.
const SNAPSHOTS: usize = 8;

/// The largest number of snapshots that Tracewright keeps for a row of the batch, if a snapshot is
/// small.
const SMALL_SNAPSHOTS: usize = 2 * SNAPSHOTS;

/// If two texts have at least this many tokens in common, Tracewright ends a network call at the
/// first position at which the two texts differ.
const WORTH_A_CALL: usize = 8;

/// The row of the batch that Tracewright chose for a new text.
pub(crate) struct Adopted {
    pub row: usize,
    /// The number of the text's first tokens that the state of the row already contains.
    pub seen: usize,
    /// The number of tokens that the text has in common with another text. The field is `None` if
    /// an additional snapshot after the common tokens would not save enough work.
    pub parts_at: Option<usize>,
}

/// A row of the batch that contains the state after a prefix of a new text.
struct Prefix {
    row: usize,
    length: usize,
    /// The number of tokens that the row and the new text have in common, even if no state for all
    /// these tokens exists.
    shared: usize,
    /// The index of the snapshot with copies of the state tensors that later network calls have
    /// overwritten. The field is `None` if the current state tensors of the row are still valid.
    snapshot: Option<usize>,
}

impl<B> Row<B> {
    /// Returns the longest prefix of `prompt` for which the row of the batch contains the state, or
    /// to which the row can be rewound.
    fn prefix(&self, row: usize, prompt: &[u32], rewinds: impl Fn(usize, usize) -> bool) -> Prefix {
        let same = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        // Two positions with the same placeholder token can have different features.
        let features = self.features.first_key_value().map_or(same, |(&first, _)| first);
        let shared = same.min(features);
        let to = shared.min(self.seen);
        let own = if to == self.seen || rewinds(self.written, to) { to } else { 0 };
        let mut best = Prefix { row, length: own, shared, snapshot: None };
        for (i, snapshot) in self.snapshots.iter().enumerate().filter(|(_, one)| one.length <= self.seen) {
            let length = match snapshot.length <= shared {
                true => snapshot.length,
                false if rewinds(snapshot.written, shared) => shared,
                false => 0,
            };
            if length > best.length {
                best = Prefix { length, snapshot: Some(i), ..best };
            }
        }
        best
    }

    /// Adds a snapshot to the row. If the row has more than `most` snapshots after the addition,
    /// the function removes the snapshot whose position is closest to the positions of its
    /// neighbours. If snapshots are small, the function removes a snapshot from the older half of
    /// the snapshots. If snapshots are large, the function can remove any snapshot except the
    /// latest.
    fn keep(&mut self, snapshot: Snapshot<KeptRow<B>>, most: usize) {
        self.snapshots.retain(|one| one.length < snapshot.length);
        self.snapshots.push(snapshot);
        if self.snapshots.len() > most {
            let length = |i: usize| self.snapshots.get(i).map_or(0, |one| one.length);
            let gap = |&i: &usize| length(i + 1) - if i == 0 { 0 } else { length(i - 1) };
            if let Some(nearest) = (0..SNAPSHOTS).min_by_key(gap) {
                self.snapshots.remove(nearest);
            }
        }
    }
}

impl<E: Executor> Network<E> {
    /// Whether the state after n tokens always contains the states after fewer than n tokens.
    /// Without a sliding window, a KV cache contains all earlier states.
    fn keeps_all(&self) -> bool {
        self.state().iter().filter_map(|tensor| tensor.part()).all(keeps_all)
    }

    /// Returns the largest number of snapshots that a row of the batch keeps. A snapshot is small if it takes
    /// at most half of the memory of a row's state.
    fn snapshots(&self) -> usize {
        let is_copied = |tensor: &&KeptTensor| tensor.part().is_some_and(|part| !keeps_all(part));
        let bytes = |tensor: &KeptTensor| tensor.ty.bytes();
        let copied: usize = self.state().iter().filter(is_copied).map(bytes).sum();
        let all: usize = self.state().iter().map(bytes).sum();
        if 2 * copied <= all { SMALL_SNAPSHOTS } else { SNAPSHOTS }
    }

    /// Returns the positions at which network calls must end while the network processes a prompt
    /// of `length` tokens. One of the returned positions is `parts_at`. If a recurrent layer has a
    /// small state, some network calls end at positions near the end of a long prompt. Otherwise, a
    /// text that shares most of the prompt would compute up to a chunk of tokens again.
    pub(crate) fn ends(&self, length: usize, parts_at: Option<usize>) -> Vec<usize> {
        let chunk = self.chunk();
        let step = chunk / (SNAPSHOTS / 2);
        let is_close =
            step > 1 && length >= 4 * chunk && !self.rewinds(2, 1) && self.snapshots() == SMALL_SNAPSHOTS;
        let from = length.saturating_sub(2 * chunk);
        let close = (from..length).filter(|position| is_close && position.is_multiple_of(step));
        let mut ends: Vec<usize> = parts_at.into_iter().chain(close).collect();
        ends.sort_unstable();
        ends
    }
}

impl<E: Executor> Sequences<'_, E> {
    /// Keeps a snapshot after each chunk of a prompt, if other texts may begin with this prompt.
    /// The snapshot contains the state tensors that later network calls overwrite.
    pub(crate) fn keep_snapshots(
        &mut self,
        first: usize,
        ranges: &[Range<usize>],
    ) -> Result<(), GenerateError> {
        if !self.keeps_prefixes || self.network.keeps_all() {
            return Ok(());
        }
        for ((number, row), range) in self.rows.iter_mut().enumerate().skip(first).zip(ranges) {
            if row.is_kept && range.len() > 1 && row.drafted == 0 {
                let at = (row.seen, row.written);
                let snapshot = self.network.save(&self.state, number, at, |part| !keeps_all(part))?;
                row.keep(snapshot, self.network.snapshots());
            }
        }
        Ok(())
    }

    /// Chooses one of the `free` rows of the batch for `prompt`, and copies a state into this row.
    /// The state belongs to the longest prefix of `prompt` for which any row contains the state.
    /// The prefix never contains the prompt's last token, because the next token is chosen from the
    /// logits after this token. Returns `None` if no row is free.
    ///
    /// # Errors
    /// Returns an error if the state cannot be read.
    pub(crate) fn adopt(&mut self, free: &[usize], prompt: &[u32]) -> Result<Option<Adopted>, GenerateError> {
        // Reuse the free row of the batch that has been unused for the longest time.
        let Some(&oldest) = free.iter().min_by_key(|&&row| self.rows[row].used) else { return Ok(None) };
        let wanted = &prompt[..prompt.len().saturating_sub(1)];
        let original = self.network.original(prompt.len());
        let prefixes = || self.prefixes(wanted).filter(|prefix| self.rows[prefix.row].original == original);
        let shared = prefixes().map(|prefix| prefix.shared).max().unwrap_or_default();
        let best = prefixes().max_by_key(|prefix| (prefix.length, free.contains(&prefix.row)));
        let Some(best) = best.filter(|best| best.length > 0) else {
            let parts_at = Some(shared).filter(|&shared| shared >= WORTH_A_CALL);
            return Ok(Some(Adopted { row: oldest, seen: 0, parts_at }));
        };
        let parts_at = Some(shared).filter(|&shared| shared >= best.length + WORTH_A_CALL);
        let is_over = best.length == self.rows[best.row].tokens.len() && free.contains(&best.row);
        // `restore` can contain a copy that no call has read yet. A snapshot must not replace this copy.
        let is_read = self.rows[best.row].restore.is_none() || best.snapshot.is_none();
        if (is_over || best.row == oldest) && is_read {
            self.go_back(&best);
            return Ok(Some(Adopted { row: best.row, seen: best.length, parts_at }));
        }
        let state = self.state_of(&best)?;
        let source = &self.rows[best.row];
        let snapshots = source.snapshots.iter().filter(|one| one.length <= best.length).cloned().collect();
        let tokens = source.tokens[..best.length].to_vec();
        self.put(oldest, Row { tokens, snapshots, original, ..Row::default() }, state);
        Ok(Some(Adopted { row: oldest, seen: best.length, parts_at }))
    }

    /// Returns a copy of the state of the longest prefix of `tokens` that any row of the batch has
    /// computed.
    ///
    /// # Errors
    /// Returns an error if the state cannot be read.
    pub(crate) fn save(&self, model: &str, tokens: &[u32]) -> Result<SavedSequence, GenerateError> {
        let is_valid =
            |prefix: &Prefix| self.rows[prefix.row].original == self.network.original(prefix.length);
        let best = self.prefixes(tokens).filter(is_valid).max_by_key(|prefix| prefix.length);
        let best = best.filter(|best| best.length > 0);
        let state = match &best {
            Some(best) => {
                let state = self.state_of(best)?;
                self.network.downloaded(state)?
            }
            None => Snapshot {
                length: 0,
                written: 0,
                tensors: self.network.state().iter().map(|_| None).collect(),
            },
        };
        Ok(self.network.saved(model, &tokens[..state.length], state))
    }

    /// Loads a saved sequence into one of the `free` rows of the batch. Returns the index of the
    /// chosen row, or `None` if no row is free.
    ///
    /// # Errors
    /// Returns an error if a different network computed the sequence.
    pub(crate) fn load(
        &mut self,
        free: &[usize],
        model: &str,
        saved: SavedSequence,
    ) -> Result<Option<usize>, GenerateError> {
        self.network.check_saved(model, &saved)?;
        let Some(&oldest) = free.iter().min_by_key(|&&row| self.rows[row].used) else { return Ok(None) };
        if !saved.tokens().is_empty() {
            let original = self.network.original(saved.tokens().len());
            let row = Row { tokens: saved.header.tokens, original, ..Row::default() };
            self.put(oldest, row, saved.state.into());
        }
        Ok(Some(oldest))
    }

    /// Returns, for each row of the batch, the longest prefix of `tokens` for which the row
    /// contains the state.
    fn prefixes(&self, tokens: &[u32]) -> impl Iterator<Item = Prefix> {
        // Only rows without an adapter and without an encoder input are considered, because the
        // state of these rows depends only on tokens.
        let rows = self.rows.iter().enumerate().filter(|(_, row)| row.adapter == 0 && row.source.is_none());
        rows.map(|(row, one)| one.prefix(row, tokens, |from, to| self.network.rewinds(from, to)))
    }

    /// Rewinds a row of the batch to a prefix of the row's own tokens.
    fn go_back(&mut self, prefix: &Prefix) {
        let one = &mut self.rows[prefix.row];
        let snapshot = prefix.snapshot.map(|i| one.snapshots[i].clone());
        self.truncate(prefix.row, prefix.length);
        if let Some(snapshot) = snapshot {
            let one = &mut self.rows[prefix.row];
            (one.seen, one.written) = (prefix.length, snapshot.written);
            one.restore = Some(snapshot);
        }
    }

    /// Returns all state tensors after a prefix of a row's tokens.
    fn state_of(&self, prefix: &Prefix) -> Result<Snapshot<KeptRow<E::Buffer>>, GenerateError> {
        let one = &self.rows[prefix.row];
        let snapshot = prefix.snapshot.map(|i| &one.snapshots[i]);
        let written = snapshot.map_or(one.written, |snapshot| snapshot.written);
        let from_row = |part| snapshot.is_none() || keeps_all(part);
        let mut state = self.network.save(&self.state, prefix.row, (prefix.length, written), from_row)?;
        // `restore` contains the state that the row gets before its next call. This state can be
        // longer than the prefix.
        let size = (prefix.length, written);
        for saved in [one.restore.as_ref(), snapshot].into_iter().flatten() {
            let parts = self.network.state().iter().zip(&mut state.tensors).zip(&saved.tensors);
            for ((kept, tensor), bytes) in parts {
                if let Some(bytes) = bytes {
                    let from = (saved.length, saved.written);
                    *tensor = Some(kept.shortened(bytes, from, size, self.network.context()));
                }
            }
        }
        Ok(state)
    }

    /// Stores a saved sequence in a row of the batch. Before the next call, Tracewright copies
    /// `state` into the row.
    fn put(&mut self, row: usize, one: Row<E::Buffer>, state: Snapshot<KeptRow<E::Buffer>>) {
        let (seen, written) = (state.length, state.written);
        self.rows[row] = Row { seen, written, used: self.clock, restore: Some(state), ..one };
    }
}
