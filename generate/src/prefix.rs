//! Reuses state for texts with a common beginning: the state is copied instead of computed.

use std::ops::Range;

use crate::executor::Executor;
use crate::row::Row;
use crate::sequences::Sequences;
use crate::snapshot::{KeptRow, Snapshot, keeps_all};
use crate::{GenerateError, Network, SavedSequence};

/// The largest number of snapshots that a row of the batch keeps.
const SNAPSHOTS: usize = 8;

/// The least number of common tokens for which a call ends where two texts begin to differ.
const WORTH_A_CALL: usize = 8;

/// A row for a new text.
pub(crate) struct Adopted {
    pub row: usize,
    /// The number of tokens of the text that the row's state already has.
    pub seen: usize,
    /// The number of tokens that the text has in common with another text, if there is no state after that
    /// many tokens.
    pub parts_at: Option<usize>,
}

/// The state of a row after some of its tokens.
struct Prefix {
    row: usize,
    length: usize,
    /// The number of common tokens, with or without state.
    shared: usize,
    /// The snapshot with the tensors that do not contain all positions; `None` if the row's own tensors are
    /// right.
    snapshot: Option<usize>,
}

impl<B> Row<B> {
    /// The longest prefix of `prompt` whose state this row has, or to which the row can go back.
    fn prefix(&self, row: usize, prompt: &[u32], rewinds: impl Fn(usize, usize) -> bool) -> Prefix {
        let same = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        // Features of two positions may differ where their placeholders do not.
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

    /// Adds a snapshot to the row. If there are too many snapshots, the function removes the snapshot whose
    /// neighbours are nearest to each other.
    fn keep(&mut self, snapshot: Snapshot<KeptRow<B>>) {
        self.snapshots.retain(|one| one.length < snapshot.length);
        self.snapshots.push(snapshot);
        if self.snapshots.len() > SNAPSHOTS {
            let length = |i: usize| self.snapshots.get(i).map_or(0, |one| one.length);
            let gap = |&i: &usize| length(i + 1) - if i == 0 { 0 } else { length(i - 1) };
            if let Some(nearest) = (0..SNAPSHOTS).min_by_key(gap) {
                self.snapshots.remove(nearest);
            }
        }
    }
}

impl<E: Executor> Network<E> {
    /// Whether a row's state after fewer tokens is always contained in the row's current state.
    fn keeps_all(&self) -> bool {
        self.state().iter().filter_map(|tensor| tensor.part()).all(keeps_all)
    }
}

impl<E: Executor> Sequences<'_, E> {
    /// Keeps the parts of the state after each chunk of a prompt that are overwritten later, if other texts
    /// may begin with this prompt.
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
                row.keep(self.network.save(&self.state, number, at, |part| !keeps_all(part))?);
            }
        }
        Ok(())
    }

    /// Gives one of the `free` rows the longest prefix of `prompt` that any row has computed, without the
    /// last token, whose logits choose the next token. `None` if no row is free.
    ///
    /// # Errors
    /// Returns an error if the state cannot be read.
    pub(crate) fn adopt(&mut self, free: &[usize], prompt: &[u32]) -> Result<Option<Adopted>, GenerateError> {
        // The free row that was not used for longest.
        let Some(&oldest) = free.iter().min_by_key(|&&row| self.rows[row].used) else { return Ok(None) };
        let wanted = &prompt[..prompt.len().saturating_sub(1)];
        let prefixes = || self.prefixes(wanted);
        let shared = prefixes().map(|prefix| prefix.shared).max().unwrap_or_default();
        let best = prefixes().max_by_key(|prefix| (prefix.length, free.contains(&prefix.row)));
        let Some(best) = best.filter(|best| best.length > 0) else {
            let parts_at = Some(shared).filter(|&shared| shared >= WORTH_A_CALL);
            return Ok(Some(Adopted { row: oldest, seen: 0, parts_at }));
        };
        let parts_at = Some(shared).filter(|&shared| shared >= best.length + WORTH_A_CALL);
        let is_over = best.length == self.rows[best.row].tokens.len() && free.contains(&best.row);
        // A snapshot would replace a copy that no call has read yet, and lose the tensors that only the copy has.
        let is_read = self.rows[best.row].restore.is_none() || best.snapshot.is_none();
        if (is_over || best.row == oldest) && is_read {
            self.go_back(&best);
            return Ok(Some(Adopted { row: best.row, seen: best.length, parts_at }));
        }
        let state = self.state_of(&best)?;
        let source = &self.rows[best.row];
        let snapshots = source.snapshots.iter().filter(|one| one.length <= best.length).cloned().collect();
        let tokens = source.tokens[..best.length].to_vec();
        self.put(oldest, Row { tokens, snapshots, ..Row::default() }, state);
        Ok(Some(Adopted { row: oldest, seen: best.length, parts_at }))
    }

    /// Copies the state of the longest prefix of `tokens` that a row has computed.
    ///
    /// # Errors
    /// Returns an error if the state cannot be read.
    pub(crate) fn save(&self, model: &str, tokens: &[u32]) -> Result<SavedSequence, GenerateError> {
        let best = self.prefixes(tokens).max_by_key(|prefix| prefix.length).filter(|best| best.length > 0);
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

    /// Puts a saved sequence into one of the `free` rows of the batch. Returns the index of the row; `None`
    /// if no row is free.
    ///
    /// # Errors
    /// Returns an error if the sequence belongs to another network.
    pub(crate) fn load(
        &mut self,
        free: &[usize],
        model: &str,
        saved: SavedSequence,
    ) -> Result<Option<usize>, GenerateError> {
        self.network.check_saved(model, &saved)?;
        let Some(&oldest) = free.iter().min_by_key(|&&row| self.rows[row].used) else { return Ok(None) };
        if !saved.tokens().is_empty() {
            self.put(oldest, Row { tokens: saved.header.tokens, ..Row::default() }, saved.state.into());
        }
        Ok(Some(oldest))
    }

    /// The longest prefix of `tokens` in each row.
    fn prefixes(&self, tokens: &[u32]) -> impl Iterator<Item = Prefix> {
        // Rows whose state follows from tokens alone.
        let rows = self.rows.iter().enumerate().filter(|(_, row)| row.adapter == 0 && row.source.is_none());
        rows.map(|(row, one)| one.prefix(row, tokens, |from, to| self.network.rewinds(from, to)))
    }

    /// Takes a row back to a prefix of its own tokens.
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

    /// The whole state after a prefix of the row's tokens.
    fn state_of(&self, prefix: &Prefix) -> Result<Snapshot<KeptRow<E::Buffer>>, GenerateError> {
        let one = &self.rows[prefix.row];
        let snapshot = prefix.snapshot.map(|i| &one.snapshots[i]);
        let written = snapshot.map_or(one.written, |snapshot| snapshot.written);
        let from_row = |part| snapshot.is_none() || keeps_all(part);
        let mut state = self.network.save(&self.state, prefix.row, (prefix.length, written), from_row)?;
        // Also what the row itself must become before its next call, which may be longer.
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

    /// Puts a sequence into a row of the batch, whose state becomes `state` before the next call.
    fn put(&mut self, row: usize, one: Row<E::Buffer>, state: Snapshot<KeptRow<E::Buffer>>) {
        let (seen, written) = (state.length, state.written);
        self.rows[row] = Row { seen, written, used: self.clock, restore: Some(state), ..one };
    }
}
