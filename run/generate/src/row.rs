//! The tokens of one sequence of the batch, and copies of the sequence's state.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::entry::EntryPoint;
use crate::network::{Feed, check_tokens};
use crate::schedule::RowWork;
use crate::snapshot::{KeptRow, Snapshot};
use crate::{EncoderInput, GenerateError};

/// The tokens of a sequence in a row of the batch, and copies of the sequence's state. `B` is the
/// type of tensors.
pub(crate) struct Row<B> {
    pub tokens: Vec<u32>,
    /// The feature vectors that replace token embeddings, by position.
    pub features: BTreeMap<usize, Vec<f32>>,
    pub adapter: u32,
    /// The input that the encoder reads for this sequence.
    pub source: Option<EncoderSource>,
    /// The number of tokens of the row that the network has processed.
    pub seen: usize,
    /// The largest number of tokens with which the row's state is valid. For longer sequences, the
    /// network has another rotary embedding.
    pub original: usize,
    /// The position after the last position that a network call has written since the row was
    /// reset.
    pub written: usize,
    /// Whether the network has processed the prompt of the row's text.
    pub decodes: bool,
    /// The number of draft tokens at the end of `tokens`.
    pub drafted: usize,
    /// A snapshot of the state before the draft tokens, if rewinding the state needs a snapshot.
    pub before_draft: Option<Snapshot<KeptRow<B>>>,
    /// Snapshots of the sequence's state at earlier positions, in ascending order of the positions.
    pub snapshots: Vec<Snapshot<KeptRow<B>>>,
    /// Whether the row of the batch keeps snapshots for other texts that begin with the same
    /// tokens.
    pub is_kept: bool,
    /// The positions at which a network call must end, in ascending order. After a network call
    /// that ends at a position in this list, Tracewright keeps a snapshot of the row's state.
    pub ends: Vec<usize>,
    /// The number of the last network call that processed tokens of this row.
    pub used: u64,
    /// The snapshot that replaces the row's state before the next network call.
    pub restore: Option<Snapshot<KeptRow<B>>>,
}

impl<B> Default for Row<B> {
    fn default() -> Self {
        Self {
            tokens: Vec::new(),
            features: BTreeMap::new(),
            adapter: 0,
            source: None,
            seen: 0,
            original: usize::MAX,
            written: 0,
            decodes: false,
            drafted: 0,
            before_draft: None,
            snapshots: Vec::new(),
            is_kept: false,
            ends: Vec::new(),
            used: 0,
            restore: None,
        }
    }
}

/// The tokens or features that an encoder has read.
#[derive(Clone)]
pub(crate) struct EncoderSource {
    tokens: Vec<u32>,
    features: Vec<f32>,
}

impl EncoderSource {
    pub fn new(
        entry: &EntryPoint,
        vocabulary: usize,
        input: EncoderInput<'_>,
    ) -> Result<Self, GenerateError> {
        let refuse = |found: usize, expected: String| Err(GenerateError::Features { found, expected });
        match (entry.features(), input) {
            (None, EncoderInput::Tokens(tokens)) if !tokens.is_empty() => {
                check_tokens(tokens, 0, entry.chunk, vocabulary)?;
                Ok(Self { tokens: tokens.to_vec(), features: Vec::new() })
            }
            (None, EncoderInput::Tokens(_)) => Err(GenerateError::EmptyPrompt),
            (None, EncoderInput::Features(features)) => {
                refuse(features.len(), format!("none, and 1 to {} tokens", entry.chunk))
            }
            (Some(width), EncoderInput::Features(features)) => {
                let positions = features.len().checked_div(width).unwrap_or_default();
                match (1..=entry.chunk).contains(&positions) && positions * width == features.len() {
                    true => Ok(Self { tokens: vec![0; positions], features: features.to_vec() }),
                    false => refuse(features.len(), format!("1 to {} times {width}", entry.chunk)),
                }
            }
            (Some(width), EncoderInput::Tokens(_)) => {
                refuse(0, format!("1 to {} times {width}", entry.chunk))
            }
        }
    }

    pub fn feed(&self) -> Feed<'_> {
        Feed { tokens: &self.tokens, features: self.features.clone(), ..Feed::default() }
    }
}

impl<B> Row<B> {
    /// Whether the next unprocessed position has features instead of a token. The result is `None`
    /// if the network has processed all positions of the row.
    pub fn next_is_features(&self) -> Option<bool> {
        (self.seen < self.tokens.len()).then(|| self.features.contains_key(&self.seen))
    }

    /// Returns the number of consecutive unprocessed positions that have features. If `of_features`
    /// is false, the function returns the number of consecutive unprocessed positions that have
    /// tokens.
    pub fn next(&self, of_features: bool) -> usize {
        let is = |position: &usize| self.features.contains_key(position) == of_features;
        (self.seen..self.tokens.len()).take_while(is).count()
    }

    /// Returns the number of unprocessed tokens, for the schedule. `alone` is true if a network
    /// call can compute this row of the batch without the other rows.
    pub fn work(&self, of_features: bool, alone: bool) -> RowWork {
        let end = self.ends.iter().copied().find(|&end| end > self.seen).unwrap_or(usize::MAX);
        RowWork { tokens: self.next(of_features).min(end - self.seen), decodes: self.decodes, alone }
    }

    pub fn feed(&self, range: Range<usize>, of_features: bool) -> Feed<'_> {
        let features = match of_features {
            true => self.features.range(range.clone()).flat_map(|(_, numbers)| numbers).copied().collect(),
            false => Vec::new(),
        };
        let (tokens, length) = (&self.tokens[range.clone()], self.tokens.len());
        Feed { tokens, features, start: range.start, adapter: self.adapter, length }
    }

    /// Removes all tokens except the first `length` tokens. If the state cannot be rewound to
    /// `length` tokens, the sequence continues from the longest usable snapshot, or from position
    /// 0.
    pub fn truncate(&mut self, length: usize, rewinds: impl Fn(usize, usize) -> bool) {
        self.tokens.truncate(length);
        self.features.split_off(&length);
        self.drafted = 0;
        self.snapshots.retain(|snapshot| snapshot.length <= length);
        let before_draft = self.before_draft.take();
        if self.seen > length {
            if rewinds(self.written, length) {
                self.seen = length;
            } else {
                // While `restore` contains a state that no call has used, a new snapshot would lack
                // some tensors of this state.
                let is_read = self.restore.is_none();
                let mut snapshots = before_draft.iter().chain(self.snapshots.iter().rev());
                let snapshot = snapshots.find(|snapshot| is_read && snapshot.length <= length);
                (self.seen, self.written) =
                    snapshot.map_or((0, 0), |snapshot| (snapshot.length, snapshot.written));
                self.restore = snapshot.cloned();
            }
            if self.seen == 0 {
                self.written = 0;
            }
        }
    }

    /// Resets the sequence to position 0 if it has unprocessed tokens and `original` differs from
    /// the value for which its state was computed.
    pub fn extend(&mut self, original: usize) {
        if self.seen < self.tokens.len() && self.original != original {
            if self.seen > 0 {
                self.begin_again();
            }
            self.original = original;
        }
    }

    /// Resets the sequence to position 0, and keeps all tokens.
    pub fn begin_again(&mut self) {
        (self.seen, self.written) = (0, 0);
        (self.restore, self.before_draft) = (None, None);
        self.snapshots.clear();
    }

    /// Removes the draft tokens, which the network has not processed.
    pub fn drop_draft(&mut self) {
        self.tokens.truncate(self.tokens.len() - self.drafted);
        self.drafted = 0;
    }
}
