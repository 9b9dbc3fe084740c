//! The tokens of one sequence, and how much of them its state holds.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::entry::EntryPoint;
use crate::network::{Feed, check_tokens};
use crate::schedule::RowWork;
use crate::snapshot::Snapshot;
use crate::{EncoderInput, GenerateError};

/// The tokens of a row.
#[derive(Clone, Default)]
pub(crate) struct Row {
    pub tokens: Vec<u32>,
    /// Features that replace tokens, by position.
    pub features: BTreeMap<usize, Vec<f32>>,
    pub adapter: u32,
    /// The source that filled the memory.
    pub source: Option<EncoderSource>,
    /// How many of them the network has seen.
    pub seen: usize,
    /// Below which position something was written since the row began.
    pub written: usize,
    /// Whether the network has seen the prompt of its text.
    pub decodes: bool,
    /// How many of the last tokens are a draft.
    pub drafted: usize,
    /// State in front of the draft, if going back needs it.
    pub before_draft: Option<Snapshot>,
    /// State of this row that going back may need, shortest first.
    pub snapshots: Vec<Snapshot>,
    /// Whether other texts may begin with its state.
    pub is_kept: bool,
    /// A call ends here, so that the state is kept: others have begun with the tokens before it.
    pub parts_at: Option<usize>,
    /// The last call that showed it something.
    pub used: u64,
    /// The change of the state before the next call.
    pub restore: Option<Snapshot>,
}

/// What an encoder read.
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

impl Row {
    /// Whether the next position is given by features; `None` if there is none.
    pub fn next_is_features(&self) -> Option<bool> {
        (self.seen < self.tokens.len()).then(|| self.features.contains_key(&self.seen))
    }

    /// How many positions come next that are given by features, or by tokens.
    pub fn next(&self, of_features: bool) -> usize {
        let is = |position: &usize| self.features.contains_key(position) == of_features;
        (self.seen..self.tokens.len()).take_while(is).count()
    }

    /// The work that the row waits for. `alone` is whether calls can serve it without the others.
    pub fn work(&self, of_features: bool, alone: bool) -> RowWork {
        let end = self.parts_at.filter(|&end| end > self.seen).unwrap_or(usize::MAX);
        RowWork { tokens: self.next(of_features).min(end - self.seen), decodes: self.decodes, alone }
    }

    pub fn feed(&self, range: Range<usize>, of_features: bool) -> Feed<'_> {
        let features = match of_features {
            true => self.features.range(range.clone()).flat_map(|(_, numbers)| numbers).copied().collect(),
            false => Vec::new(),
        };
        Feed { tokens: &self.tokens[range.clone()], features, start: range.start, adapter: self.adapter }
    }

    /// Takes back all but the first `length` tokens. If the state cannot go back there, it becomes the longest snapshot that can,
    /// or the row begins again.
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
                let mut snapshots = before_draft.iter().chain(self.snapshots.iter().rev());
                let snapshot = snapshots.find(|snapshot| snapshot.length <= length);
                (self.seen, self.written) =
                    snapshot.map_or((0, 0), |snapshot| (snapshot.length, snapshot.written));
                self.restore = snapshot.cloned();
            }
            if self.seen == 0 {
                self.written = 0;
            }
        }
    }

    /// The row begins again with the tokens that it has.
    pub fn begin_again(&mut self) {
        (self.seen, self.written) = (0, 0);
        (self.restore, self.before_draft) = (None, None);
        self.snapshots.clear();
    }

    /// Takes back a draft that the network has not seen.
    pub fn drop_draft(&mut self) {
        self.tokens.truncate(self.tokens.len() - self.drafted);
        self.drafted = 0;
    }
}
