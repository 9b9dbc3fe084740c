//! Reuses the state (such as the KV cache) of a prefix that two sequences have in common: it is copied
//! instead of computed again.

use std::ops::Range;

use crate::entry::KeptTensor;
use crate::executor::Executor;
use crate::features::FeatureBlocks;
use crate::sequence::{Sequence, SequenceInput};
use crate::sequences::Sequences;
use crate::snapshot::{KeptRow, Snapshot, keeps_all};
use crate::{GenerateError, Network, SavedSequence};

/// The largest number of snapshots that Tracewright keeps for a sequence.
const SNAPSHOTS: usize = 8;

/// The largest number of snapshots that Tracewright keeps for a sequence, if a snapshot is small.
const SMALL_SNAPSHOTS: usize = 2 * SNAPSHOTS;

/// With at least this many shared tokens, a network call ends where two sequences begin to differ.
const WORTH_A_CALL: usize = 8;

/// The place in the batch that Tracewright chose for a new sequence.
pub(crate) struct Reused {
    pub index: usize,
    /// The number of the sequence's first tokens whose state exists already.
    pub length: usize,
    /// The shared tokens, or `None` if a snapshot after them would not save enough work.
    pub parts_at: Option<usize>,
}

/// A sequence of the batch whose state a new sequence can reuse.
struct Reusable {
    index: usize,
    length: usize,
    /// The number of tokens that two sequences share, even without a state for all of them.
    shared: usize,
    /// The snapshot with overwritten state tensors, or `None` if the current state is still valid.
    snapshot: Option<usize>,
}

impl<B> Sequence<B> {
    /// Returns the longest prefix of `tokens` of which the sequence has, or can be rewound to, the state.
    fn reusable(
        &self,
        index: usize,
        (tokens, features): (&[u32], &FeatureBlocks),
        rewinds: impl Fn(usize, usize) -> bool,
    ) -> Reusable {
        let prefix = &self.prefix;
        let same = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        // Two positions with the same placeholder token can have different features.
        let shared = self.input.features.shared(features, same);
        let to = shared.min(prefix.length);
        let own = if to == prefix.length || rewinds(prefix.written, to) { to } else { 0 };
        let mut best = Reusable { index, length: own, shared, snapshot: None };
        for (i, snapshot) in
            prefix.snapshots.iter().enumerate().filter(|(_, one)| one.length <= prefix.length)
        {
            let length = match snapshot.length <= shared {
                true => snapshot.length,
                false if rewinds(snapshot.written, shared) => shared,
                false => 0,
            };
            if length > best.length {
                best = Reusable { length, snapshot: Some(i), ..best };
            }
        }
        best
    }

    /// Adds a snapshot. Beyond `most`, removes the one closest to its neighbours: of small snapshots in the
    /// older half, of large ones anywhere but the latest.
    fn keep(&mut self, snapshot: Snapshot<KeptRow<B>>, most: usize) {
        let snapshots = &mut self.prefix.snapshots;
        snapshots.retain(|one| one.length < snapshot.length);
        snapshots.push(snapshot);
        if snapshots.len() > most {
            let length = |i: usize| snapshots.get(i).map_or(0, |one| one.length);
            let gap = |&i: &usize| length(i + 1) - if i == 0 { 0 } else { length(i - 1) };
            if let Some(nearest) = (0..SNAPSHOTS).min_by_key(gap) {
                snapshots.remove(nearest);
            }
        }
    }
}

impl<E: Executor> Network<E> {
    /// Whether the state after n tokens contains all earlier ones, as in a KV cache without a window.
    fn keeps_all(&self) -> bool {
        self.state().iter().filter_map(|tensor| tensor.part()).all(keeps_all)
    }

    /// The most snapshots of a sequence. A small one takes at most half of a sequence's state.
    fn snapshots(&self) -> usize {
        let is_copied = |tensor: &&KeptTensor| tensor.part().is_some_and(|part| !keeps_all(part));
        let bytes = |tensor: &KeptTensor| tensor.ty.bytes();
        let copied: usize = self.state().iter().filter(is_copied).map(bytes).sum();
        let all: usize = self.state().iter().map(bytes).sum();
        if 2 * copied <= all { SMALL_SNAPSHOTS } else { SNAPSHOTS }
    }

    /// Returns where calls must end in a prompt of `length` tokens, including `parts_at`. With a small state
    /// of a recurrent layer, some calls end near the end of a long prompt. Otherwise, a similar prompt would
    /// compute up to a chunk again.
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
    /// Keeps the overwritten state tensors after each chunk of a prompt with which others may begin.
    pub(crate) fn keep_snapshots(
        &mut self,
        first: usize,
        ranges: &[Range<usize>],
    ) -> Result<(), GenerateError> {
        if !self.keeps_prefixes || self.network.keeps_all() {
            return Ok(());
        }
        for ((index, one), range) in self.all.iter_mut().enumerate().skip(first).zip(ranges) {
            if one.input.reuse && range.len() > 1 && one.draft.length == 0 {
                let at = (one.prefix.length, one.prefix.written);
                let snapshot = self.network.save(&self.state, index, at, |part| !keeps_all(part))?;
                one.keep(snapshot, self.network.snapshots());
            }
        }
        Ok(())
    }

    /// Chooses one of the `free` places for a new sequence, or `None`, and copies the state of the longest
    /// known prefix of `tokens` there. The last token is excluded, because its logits choose the next token.
    pub(crate) fn reuse(
        &mut self,
        free: &[usize],
        tokens: &[u32],
        input: &SequenceInput,
    ) -> Result<Option<Reused>, GenerateError> {
        // Take the free place that has been unused for the longest time.
        let Some(&oldest) = free.iter().min_by_key(|&&index| self.all[index].prefix.used) else {
            return Ok(None);
        };
        let wanted = (&tokens[..tokens.len().saturating_sub(1)], &input.features);
        let (original, adapter) = (self.network.original(tokens.len()), input.adapter);
        let is_valid = |one: &Reusable| self.all[one.index].prefix.original == original;
        let found = || self.reusable(wanted, adapter).into_iter().filter(is_valid);
        let shared = found().map(|one| one.shared).max().unwrap_or_default();
        let best = found().max_by_key(|one| (one.length, free.contains(&one.index)));
        let Some(best) = best.filter(|best| best.length > 0) else {
            let parts_at = Some(shared).filter(|&shared| shared >= WORTH_A_CALL);
            return Ok(Some(Reused { index: oldest, length: 0, parts_at }));
        };
        let parts_at = Some(shared).filter(|&shared| shared >= best.length + WORTH_A_CALL);
        let source = &self.all[best.index];
        let is_over = best.length == source.tokens.len() && free.contains(&best.index);
        // `restore` can contain a copy that no call has read yet. A snapshot must not replace this copy.
        let is_read = source.prefix.restore.is_none() || best.snapshot.is_none();
        if (is_over || best.index == oldest) && is_read {
            self.go_back(&best);
            return Ok(Some(Reused { index: best.index, length: best.length, parts_at }));
        }
        let state = self.state_of(&best)?;
        let snapshots = &source.prefix.snapshots;
        let snapshots = snapshots.iter().filter(|one| one.length <= best.length).cloned().collect();
        let tokens = source.tokens[..best.length].to_vec();
        self.put(oldest, tokens, original, state);
        self.all[oldest].prefix.snapshots = snapshots;
        Ok(Some(Reused { index: oldest, length: best.length, parts_at }))
    }

    /// Returns a copy of the state of the longest prefix of `tokens` that any sequence has computed.
    pub(crate) fn save(&self, model: &str, tokens: &[u32]) -> Result<SavedSequence, GenerateError> {
        let is_valid =
            |one: &Reusable| self.all[one.index].prefix.original == self.network.original(one.length);
        let best = self
            .reusable((tokens, &FeatureBlocks::default()), 0)
            .into_iter()
            .filter(is_valid)
            .max_by_key(|one| one.length);
        let state = match best.filter(|best| best.length > 0) {
            Some(best) => self.network.downloaded(self.state_of(&best)?)?,
            None => Snapshot {
                length: 0,
                written: 0,
                tensors: self.network.state().iter().map(|_| None).collect(),
            },
        };
        Ok(self.network.saved(model, &tokens[..state.length], state))
    }

    /// Loads a saved sequence into one of the `free` places of the batch, or returns `None` without a place.
    pub(crate) fn load(
        &mut self,
        free: &[usize],
        model: &str,
        saved: SavedSequence,
    ) -> Result<Option<()>, GenerateError> {
        self.network.check_saved(model, &saved)?;
        let Some(&oldest) = free.iter().min_by_key(|&&index| self.all[index].prefix.used) else {
            return Ok(None);
        };
        if !saved.tokens().is_empty() {
            let original = self.network.original(saved.tokens().len());
            self.put(oldest, saved.header.tokens, original, saved.state.into());
        }
        Ok(Some(()))
    }

    /// The longest known prefix of `tokens` in each sequence with the adapter. A source changes the state.
    fn reusable(&self, wanted: (&[u32], &FeatureBlocks), adapter: u32) -> Vec<Reusable> {
        let can = move |one: &Sequence<E::Buffer>| one.input.adapter == adapter && one.input.source.is_none();
        let all = self.all.iter().enumerate().filter(move |(_, one)| can(one));
        let rewinds = |from, to| self.network.rewinds(from, to);
        all.map(|(index, one)| one.reusable(index, wanted, rewinds)).collect()
    }

    /// Rewinds a sequence to a prefix of its own tokens.
    fn go_back(&mut self, to: &Reusable) {
        let snapshot = to.snapshot.map(|i| self.all[to.index].prefix.snapshots[i].clone());
        self.truncate(to.index, to.length);
        if let Some(snapshot) = snapshot {
            let prefix = &mut self.all[to.index].prefix;
            (prefix.length, prefix.written) = (to.length, snapshot.written);
            prefix.restore = Some(snapshot);
        }
    }

    /// Returns all state tensors after a prefix of a sequence.
    fn state_of(&self, reusable: &Reusable) -> Result<Snapshot<KeptRow<E::Buffer>>, GenerateError> {
        let &Reusable { index, length, .. } = reusable;
        let prefix = &self.all[index].prefix;
        let snapshot = reusable.snapshot.map(|i| &prefix.snapshots[i]);
        let written = snapshot.map_or(prefix.written, |snapshot| snapshot.written);
        let from_batch = |part| snapshot.is_none() || keeps_all(part);
        let mut state = self.network.save(&self.state, index, (length, written), from_batch)?;
        // `restore` contains the state that the sequence gets before its next call. This state can be
        // longer than the prefix.
        for saved in [prefix.restore.as_ref(), snapshot].into_iter().flatten() {
            let parts = self.network.state().iter().zip(&mut state.tensors).zip(&saved.tensors);
            for ((kept, tensor), bytes) in parts {
                if let Some(bytes) = bytes {
                    let from = (saved.length, saved.written);
                    *tensor = Some(kept.shortened(bytes, from, (length, written), self.network.context()));
                }
            }
        }
        Ok(state)
    }

    /// Puts a copied sequence in a place of the batch; `state` is copied there before the next call.
    fn put(&mut self, index: usize, tokens: Vec<u32>, original: usize, state: Snapshot<KeptRow<E::Buffer>>) {
        let mut one = Sequence { tokens, ..Sequence::default() };
        (one.prefix.length, one.prefix.written) = (state.length, state.written);
        (one.prefix.original, one.prefix.used) = (original, self.clock);
        one.prefix.restore = Some(state);
        self.all[index] = one;
    }
}
