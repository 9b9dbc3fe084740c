//! The engine that steps a network: rows of tokens, each at a position of its own.

use std::collections::BTreeMap;
use std::iter::zip;
use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use crate::entry::{EntryKind, EntryPoint};
use crate::executor::Executor;
use crate::generation::{Generated, Generation, StepOutput, StepRequest};
use crate::network::{Feed, StepResults, check_tokens, floats, ids};
use crate::{EncoderInput, GenerateError, Network};

/// The rows of a network, and what its layers remember of them.
pub(crate) struct Sequences<'a, E: Executor> {
    pub network: &'a Network<E>,
    rows: Vec<Row>,
    /// Empty before the first call, and after a failed one, which consumed it.
    state: Vec<E::Buffer>,
    /// What an encoder filled; empty before.
    memory: Vec<E::Buffer>,
}

/// The tokens of a row.
#[derive(Clone, Default)]
struct Row {
    tokens: Vec<u32>,
    /// What stands in place of tokens, by position.
    features: BTreeMap<usize, Vec<f32>>,
    adapter: u32,
    /// What the memory was filled from.
    source: Option<EncoderSource>,
    /// How many of them the network has seen.
    seen: usize,
    /// Below which position something was written since the row began.
    written: usize,
}

/// What an encoder read.
#[derive(Clone)]
struct EncoderSource {
    tokens: Vec<u32>,
    features: Vec<f32>,
}

impl EncoderSource {
    fn new(entry: &EntryPoint, vocabulary: usize, input: EncoderInput<'_>) -> Result<Self, GenerateError> {
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

    fn feed(&self) -> Feed<'_> {
        Feed { tokens: &self.tokens, features: self.features.clone(), ..Feed::default() }
    }
}

impl Row {
    /// Whether the next position is given by features; `None` if there is none.
    fn next_is_features(&self) -> Option<bool> {
        (self.seen < self.tokens.len()).then(|| self.features.contains_key(&self.seen))
    }

    /// How many positions come next that are given by features, or by tokens.
    fn next(&self, of_features: bool) -> usize {
        let is = |position: &usize| self.features.contains_key(position) == of_features;
        (self.seen..self.tokens.len()).take_while(is).count()
    }

    fn feed(&self, range: Range<usize>, of_features: bool) -> Feed<'_> {
        let features = match of_features {
            true => self.features.range(range.clone()).flat_map(|(_, numbers)| numbers).copied().collect(),
            false => Vec::new(),
        };
        Feed { tokens: &self.tokens[range.clone()], features, start: range.start, adapter: self.adapter }
    }
}

impl<'a, E: Executor> Sequences<'a, E> {
    pub fn new(network: &'a Network<E>) -> Self {
        Self { network, rows: vec![Row::default(); network.batch()], state: Vec::new(), memory: Vec::new() }
    }

    /// The tokens of a row, those included that the network has still to see.
    pub fn tokens(&self, row: usize) -> &[u32] {
        &self.rows[row].tokens
    }

    /// Whether the network has seen all tokens of a row.
    pub fn is_settled(&self, row: usize) -> bool {
        self.rows[row].seen == self.rows[row].tokens.len()
    }

    /// Adds tokens to a row, for the next steps to show.
    ///
    /// # Errors
    /// If they do not fit, or one is no token.
    pub fn push(&mut self, row: usize, tokens: &[u32]) -> Result<(), GenerateError> {
        self.network.check(tokens, self.rows[row].tokens.len())?;
        self.rows[row].tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// Adds positions that are given by features, with `placeholder` as their tokens.
    ///
    /// # Errors
    /// If they do not fit, or the network takes no features of this width.
    pub fn push_features(
        &mut self,
        row: usize,
        features: &[f32],
        placeholder: u32,
    ) -> Result<(), GenerateError> {
        let width = self.network.features()?;
        if width == 0 || !features.len().is_multiple_of(width) {
            let expected = format!("a multiple of {width}, one position's");
            return Err(GenerateError::Features { found: features.len(), expected });
        }
        let first = self.rows[row].tokens.len();
        self.push(row, &vec![placeholder; features.len() / width])?;
        let positions = features.chunks(width).map(<[f32]>::to_vec);
        self.rows[row].features.extend((first..).zip(positions));
        Ok(())
    }

    /// Fills the memory of a row, which begins again. One call encodes for all rows, so the others' sources are encoded again.
    ///
    /// # Errors
    /// If the network has no encoder, it takes less, or the call fails.
    pub fn encode(&mut self, row: usize, input: EncoderInput<'_>) -> Result<(), GenerateError> {
        let entry = self.network.only(EntryKind::Encoder)?;
        let source = EncoderSource::new(entry, self.network.vocabulary(), input)?;
        let sources = self.rows.iter().enumerate().map(|(index, one)| match index == row {
            true => Some(&source),
            false => one.source.as_ref(),
        });
        let feeds: Vec<Feed<'_>> =
            sources.map(|source| source.map_or_else(Feed::default, EncoderSource::feed)).collect();
        let mut memory = Vec::new();
        self.network.call(entry, &feeds, &mut memory, &[])?;
        self.memory = memory;
        self.truncate(row, 0);
        self.rows[row].source = Some(source);
        Ok(())
    }

    /// Empties a row but for its first `seen` tokens. The rest of a new text's input takes effect on an empty row only.
    pub fn begin(&mut self, row: usize, seen: usize) {
        self.truncate(row, seen);
        if seen == 0 {
            (self.rows[row].adapter, self.rows[row].source) = (0, None);
        }
    }

    /// How many of the prompt's first tokens a row has, where the row is what tokens alone make it.
    pub fn shared(&self, row: usize, prompt: &[u32]) -> usize {
        let one = &self.rows[row];
        if one.adapter != 0 || one.source.is_some() {
            return 0;
        }
        let tokens = one.features.keys().next().copied().unwrap_or(one.tokens.len());
        zip(prompt, &one.tokens[..tokens]).take_while(|(a, b)| a == b).count()
    }

    /// Chooses the adapter of a row, which begins again.
    pub fn adapt(&mut self, row: usize, adapter: u32) {
        let one = &mut self.rows[row];
        (one.adapter, one.seen, one.written) = (adapter, 0, 0);
    }

    /// Takes back all but the first `length` tokens of a row. Where its state cannot go back there, it begins again.
    pub fn truncate(&mut self, row: usize, length: usize) {
        let one = &mut self.rows[row];
        one.tokens.truncate(length);
        one.features.split_off(&length);
        if one.seen <= length {
            return;
        }
        one.seen = if self.network.rewinds(one.written, length) { length } else { 0 };
        if one.seen == 0 {
            one.written = 0;
        }
    }

    /// Takes back the tokens of a row that the network has not seen.
    pub fn settle_back(&mut self, row: usize) {
        let one = &mut self.rows[row];
        one.tokens.truncate(one.seen);
        one.features.split_off(&one.seen);
    }

    /// Shows the next tokens of all rows to the network, as many as one call takes. Sequences that it has seen stay as
    /// they are. Returns an answer for each row, and the time of the call.
    ///
    /// # Errors
    /// If the call fails. Then the state is lost, and the next steps show all rows from their beginning.
    pub fn step(&mut self, want: StepRequest) -> Result<(Vec<StepOutput>, Duration), GenerateError> {
        let begin = Instant::now();
        // Rows whose next positions are tokens wait for features, of which there is an end.
        let Some(of_features) = self.rows.iter().filter_map(Row::next_is_features).max() else {
            return Ok((self.rows.iter().map(|_| StepOutput::Nothing).collect(), Duration::ZERO));
        };
        let unfilled = |row: &Row| row.source.is_none() && row.seen < row.tokens.len();
        if self.network.reads_memory() && self.rows.iter().any(unfilled) {
            return Err(GenerateError::NoMemory);
        }
        let longest = self.rows.iter().map(|row| row.next(of_features)).max().unwrap_or_default();
        let entry = match want {
            StepRequest::All => self.network.only(EntryKind::Scorer)?,
            StepRequest::Each => self.network.only(EntryKind::Each)?,
            _ => self.network.step(longest, of_features)?,
        };
        if entry.features().is_some() != of_features {
            let why = "takes tokens, expected features".into();
            return Err(GenerateError::EntryPoint { name: entry.name.clone(), why });
        }
        if self.state.is_empty() {
            self.state = self.network.empty()?;
        }
        let feed = |row: &Row| row.seen..row.seen + row.next(of_features).min(entry.chunk);
        let ranges: Vec<_> = self.rows.iter().map(feed).collect();
        let feeds: Vec<Feed<'_>> = (self.rows.iter().zip(&ranges))
            .map(|(row, range)| row.feed(range.clone(), of_features))
            .collect();
        let answered = match self.network.call(entry, &feeds, &mut self.state, &self.memory) {
            Ok(answered) => answered,
            Err(error) => {
                self.lose();
                return Err(error);
            }
        };
        for (row, range) in self.rows.iter_mut().zip(&ranges) {
            row.seen = range.end;
            row.written = row.written.max(range.end);
        }
        let answers = match self.answers(want, answered, &ranges, entry.chunk) {
            Ok(answers) => answers,
            Err(error) => {
                self.lose();
                return Err(error);
            }
        };
        Ok((answers, begin.elapsed()))
    }

    fn answers(
        &self,
        want: StepRequest,
        answered: StepResults<E::Buffer>,
        ranges: &[Range<usize>],
        chunk: usize,
    ) -> Result<Vec<StepOutput>, GenerateError> {
        let answers = |row: usize| !ranges[row].is_empty() && self.is_settled(row);
        let vocabulary = self.network.vocabulary();
        let StepResults { logits, token } = &answered;
        Ok(match (want, token, logits) {
            (StepRequest::Token, Some(token), Some(logits)) if (0..ranges.len()).any(answers) => {
                let tokens = ids(&self.network.executor.read(token)?);
                let answer = |row: usize| match answers(row) {
                    true => self.favoured(tokens[row], row, logits),
                    false => Ok(StepOutput::Nothing),
                };
                (0..ranges.len()).map(answer).collect::<Result<_, _>>()?
            }
            (StepRequest::Logits, _, Some(logits)) if (0..ranges.len()).any(answers) => {
                let logits = floats(&self.network.executor.read(logits)?);
                let answer = |row: usize| match answers(row) {
                    true => StepOutput::Logits(vec![logits[row * vocabulary..][..vocabulary].to_vec()]),
                    false => StepOutput::Nothing,
                };
                (0..ranges.len()).map(answer).collect()
            }
            (StepRequest::Each, Some(token), _) => {
                let tokens = ids(&self.network.executor.read(token)?);
                if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
                    return Err(GenerateError::Favoured { token, vocabulary });
                }
                let answer = |(row, range): (usize, &Range<usize>)| {
                    StepOutput::Tokens(tokens[row * chunk..][..range.len()].to_vec())
                };
                ranges.iter().enumerate().map(answer).collect()
            }
            (StepRequest::All, _, Some(logits)) => {
                let logits = floats(&self.network.executor.read(logits)?);
                let after =
                    |row: usize, i: usize| logits[(row * chunk + i) * vocabulary..][..vocabulary].to_vec();
                let answer = |(row, range): (usize, &Range<usize>)| {
                    StepOutput::Logits((0..range.len()).map(|i| after(row, i)).collect())
                };
                ranges.iter().enumerate().map(answer).collect()
            }
            _ => ranges.iter().map(|_| StepOutput::Nothing).collect(),
        })
    }

    /// The token that the module favours, if its logit is a number. If one logit is NaN, the module favours that; so this
    /// one tells of all. If it is none, the logits themselves, of which none can be chosen.
    fn favoured(&self, token: u32, row: usize, logits: &E::Buffer) -> Result<StepOutput, GenerateError> {
        let vocabulary = self.network.vocabulary();
        if token as usize >= vocabulary {
            return Err(GenerateError::Favoured { token, vocabulary });
        }
        let first = row * vocabulary;
        let logit = self.network.executor.read_element(logits, first + token as usize)?;
        if floats(&logit).iter().all(|logit| logit.is_finite()) {
            return Ok(StepOutput::Token(token));
        }
        let logits = floats(&self.network.executor.read(logits)?);
        Ok(StepOutput::Logits(vec![logits[first..][..vocabulary].to_vec()]))
    }

    /// One step of texts that are being continued, each in the row of its place: calls the network, chooses tokens and
    /// adds them to their rows. Returns those that ended, which are taken out of `running`.
    ///
    /// # Errors
    /// If the call fails, or no token can be chosen.
    pub fn step_all(
        &mut self,
        running: &mut [Option<Generation>],
        mut on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<(usize, Generated)>, GenerateError> {
        let want = running.iter().flatten().map(Generation::want).max().unwrap_or(StepRequest::Nothing);
        let (answers, time) = self.step(want)?;
        let mut ended = Vec::new();
        for (row, (place, answer)) in running.iter_mut().zip(answers).enumerate() {
            let Some(generation) = place else { continue };
            generation.spend(time);
            if matches!(answer, StepOutput::Nothing) {
                continue;
            }
            let is_full = self.tokens(row).len() == self.network.context();
            match generation.next(answer, self.tokens(row), is_full, |token| on_token(row, token))? {
                Some(token) => self.push(row, &[token])?,
                None => ended.extend(place.take().map(|generation| (row, generation.into_generated()))),
            }
        }
        Ok(ended)
    }

    /// The state is gone: all rows begin again.
    fn lose(&mut self) {
        self.state.clear();
        self.rows.iter_mut().for_each(|row| (row.seen, row.written) = (0, 0));
    }
}
