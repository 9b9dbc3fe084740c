//! A member of a batch: its tokens, its input, and the state that the network has computed for it.

use std::ops::Range;

use crate::features::FeatureBlocks;
use crate::network::Feed;
use crate::schedule::SequenceWork;
use crate::snapshot::{KeptRow, Snapshot};

/// A member of a batch. `B` is the type of tensors.
pub(crate) struct Sequence<B> {
    /// The tokens of the prompt and the chosen tokens, with the draft at the end.
    pub tokens: Vec<u32>,
    pub input: SequenceInput,
    pub prefix: Prefix<B>,
    pub draft: Draft<B>,
}

/// A checked [`Prompt`](crate::Prompt) without its tokens.
#[derive(Default)]
pub(crate) struct SequenceInput {
    /// The feature vectors that replace token embeddings.
    pub features: FeatureBlocks,
    pub source: Option<EncoderSource>,
    pub adapter: u32,
    /// Whether the sequence keeps snapshots for other sequences that begin with the same tokens.
    pub reuse: bool,
}

/// The positions that an encoder has read.
#[derive(PartialEq)]
pub(crate) struct EncoderSource {
    /// A token id for each position; 0 if the position has features.
    pub tokens: Vec<u32>,
    pub numbers: Vec<f32>,
}

/// The first tokens of a sequence, whose state the network has computed.
pub(crate) struct Prefix<B> {
    /// The number of tokens.
    pub length: usize,
    /// The position after the last position that a network call has written since the sequence was reset.
    pub written: usize,
    /// The most tokens with a valid state; longer sequences have another rotary embedding.
    pub original: usize,
    /// Whether the prefix contains the whole prompt.
    pub has_prompt: bool,
    /// Snapshots of the state at earlier positions, in ascending order of the positions.
    pub snapshots: Vec<Snapshot<KeptRow<B>>>,
    /// Positions at which a call must end, ascending. A snapshot of the state is kept there.
    pub ends: Vec<usize>,
    /// The number of the last network call that extended the prefix.
    pub used: u64,
    /// The snapshot that replaces the state before the next network call.
    pub restore: Option<Snapshot<KeptRow<B>>>,
}

/// Draft tokens, which the next network call verifies.
pub(crate) struct Draft<B> {
    /// The number of draft tokens at the end of the sequence.
    pub length: usize,
    /// A snapshot of the state before the draft tokens, if rewinding the state needs a snapshot.
    pub before: Option<Snapshot<KeptRow<B>>>,
}

impl<B> Default for Sequence<B> {
    fn default() -> Self {
        Self {
            tokens: Vec::new(),
            input: SequenceInput::default(),
            prefix: Prefix {
                length: 0,
                written: 0,
                original: usize::MAX,
                has_prompt: false,
                snapshots: Vec::new(),
                ends: Vec::new(),
                used: 0,
                restore: None,
            },
            draft: Draft { length: 0, before: None },
        }
    }
}

impl EncoderSource {
    pub fn feed(&self) -> Feed<'_> {
        Feed { tokens: &self.tokens, features: self.numbers.clone(), ..Feed::default() }
    }
}

impl<B> Sequence<B> {
    /// The number of tokens that the network has not processed yet.
    pub fn pending(&self) -> usize {
        self.tokens.len() - self.prefix.length
    }

    /// Whether the next pending position has features, or `None` without a pending position.
    pub fn next_is_features(&self) -> Option<bool> {
        (self.pending() > 0).then(|| self.input.features.around(self.prefix.length).is_some())
    }

    /// The pending positions of the next block of features, or the tokens before it if `of_features` is false.
    pub fn next(&self, of_features: bool) -> usize {
        let (features, first) = (&self.input.features, self.prefix.length);
        let end = match features.around(first) {
            Some(block) if of_features => block.end,
            None if !of_features => features.next(first).unwrap_or(self.tokens.len()),
            _ => first,
        };
        end.min(self.tokens.len()) - first
    }

    /// The pending tokens for the schedule; `alone`: a call can compute this sequence without others.
    pub fn work(&self, of_features: bool, alone: bool) -> SequenceWork {
        let Prefix { length, ends, has_prompt, .. } = &self.prefix;
        // A call that ends inside of a block would divide it.
        let end = ends.iter().copied().find(|end| end > length).filter(|_| !of_features);
        let most = end.map_or(usize::MAX, |end| end - length);
        SequenceWork { tokens: self.next(of_features).min(most), decodes: *has_prompt, alone }
    }

    pub fn feed(&self, range: Range<usize>, of_features: bool) -> Feed<'_> {
        let features = if of_features { self.input.features.numbers(&range) } else { Vec::new() };
        let (tokens, length) = (&self.tokens[range.clone()], self.tokens.len());
        Feed { tokens, features, start: range.start, adapter: self.input.adapter, length }
    }

    /// Keeps the first `length` tokens. If the state cannot be rewound to them, continues from the longest
    /// usable snapshot, or from position 0.
    pub fn truncate(&mut self, length: usize, rewinds: impl Fn(usize, usize) -> bool) {
        let Self { tokens, input, prefix, draft } = self;
        tokens.truncate(length);
        input.features.truncate(length);
        draft.length = 0;
        prefix.snapshots.retain(|snapshot| snapshot.length <= length);
        let before = draft.before.take();
        if prefix.length <= length {
            return;
        }
        if rewinds(prefix.written, length) {
            prefix.length = length;
        } else {
            // While `restore` contains a state that no call has used, a new snapshot would lack
            // some tensors of this state.
            let is_read = prefix.restore.is_none();
            let mut snapshots = before.iter().chain(prefix.snapshots.iter().rev());
            let snapshot = snapshots.find(|snapshot| is_read && snapshot.length <= length);
            (prefix.length, prefix.written) =
                snapshot.map_or((0, 0), |snapshot| (snapshot.length, snapshot.written));
            prefix.restore = snapshot.cloned();
        }
        if prefix.length == 0 {
            prefix.written = 0;
        }
    }

    /// Resets to position 0 if tokens are pending and `original` differs from that of the state.
    pub fn extend(&mut self, original: usize) {
        if self.pending() > 0 && self.prefix.original != original {
            if self.prefix.length > 0 {
                self.reset();
            }
            self.prefix.original = original;
        }
    }

    /// Resets the sequence to position 0, and keeps all tokens.
    pub fn reset(&mut self) {
        let Self { prefix, draft, .. } = self;
        (prefix.length, prefix.written) = (0, 0);
        (prefix.restore, draft.before) = (None, None);
        prefix.snapshots.clear();
    }

    /// Removes the tokens that the network has not processed.
    pub fn drop_pending(&mut self) {
        self.tokens.truncate(self.prefix.length);
        self.input.features.truncate(self.prefix.length);
    }

    /// Removes the draft tokens, which the network has not processed.
    pub fn drop_draft(&mut self) {
        self.tokens.truncate(self.tokens.len() - self.draft.length);
        self.draft.length = 0;
    }
}
