//! The engine that steps a network over rows of tokens, each at its own position.

use std::collections::BTreeMap;
use std::iter::zip;
use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use crate::entry::{EntryKind, EntryPoint};
use crate::executor::Executor;
use crate::generation::{Generated, Generation, StepOutput, StepRequest};
use crate::network::{Feed, StepResults, check_tokens, floats, ids};
use crate::{EncoderInput, GenerateError, Network};

/// The rows of a network, and the state of its layers.
pub(crate) struct Sequences<'a, E: Executor> {
    pub network: &'a Network<E>,
    rows: Vec<Row>,
    /// The layers' state. It is empty before the first call, and after a failed call, which consumes it.
    state: Vec<E::Buffer>,
    /// The state that an encoder has filled; empty before.
    memory: Vec<E::Buffer>,
}

/// The tokens of a row.
#[derive(Clone, Default)]
struct Row {
    tokens: Vec<u32>,
    /// Vectors in place of embeddings, by position.
    features: BTreeMap<usize, Vec<f32>>,
    adapter: u32,
    /// The input from which the encoder's state was computed.
    source: Option<Source>,
    /// How many of the tokens the network has processed.
    seen: usize,
    /// The position after the last one written since the row began.
    written: usize,
}

/// The input of an encoder.
#[derive(Clone)]
struct Source {
    tokens: Vec<u32>,
    features: Vec<f32>,
}

impl Source {
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
    /// Whether the next position has features instead of a token; `None` if there is no next position.
    fn next_is_features(&self) -> Option<bool> {
        (self.seen < self.tokens.len()).then(|| self.features.contains_key(&self.seen))
    }

    /// How many of the next positions are all features, or all tokens.
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

    /// The tokens of a row, including those that the network has not processed yet.
    pub fn tokens(&self, row: usize) -> &[u32] {
        &self.rows[row].tokens
    }

    /// Whether the network has processed all tokens of a row.
    pub fn is_settled(&self, row: usize) -> bool {
        self.rows[row].seen == self.rows[row].tokens.len()
    }

    /// Appends tokens to a row. The next steps process them.
    ///
    /// # Errors
    /// If they exceed the context, or one is not in the vocabulary.
    pub fn push(&mut self, row: usize, tokens: &[u32]) -> Result<(), GenerateError> {
        self.network.check(tokens, self.rows[row].tokens.len())?;
        self.rows[row].tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// Appends positions with features to a row. Their tokens are `placeholder`.
    ///
    /// # Errors
    /// If they exceed the context, or the network takes no features of this width.
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

    /// Runs the encoder for a row, which starts again. One call encodes for all rows, so the inputs of other
    /// rows are encoded again.
    ///
    /// # Errors
    /// If the network has no encoder, the input is too long, or the call fails.
    pub fn encode(&mut self, row: usize, input: EncoderInput<'_>) -> Result<(), GenerateError> {
        let entry = self.network.only(EntryKind::Encoder)?;
        let source = Source::new(entry, self.network.vocabulary(), input)?;
        let sources = self.rows.iter().enumerate().map(|(index, one)| match index == row {
            true => Some(&source),
            false => one.source.as_ref(),
        });
        let feeds: Vec<Feed<'_>> =
            sources.map(|source| source.map_or_else(Feed::default, Source::feed)).collect();
        let mut memory = Vec::new();
        self.network.call(entry, &feeds, &mut memory, &[])?;
        self.memory = memory;
        self.truncate(row, 0);
        self.rows[row].source = Some(source);
        Ok(())
    }

    /// Removes all but the first `seen` tokens of a row. If there are none, the row also loses its encoder
    /// input and its adapter.
    pub fn begin(&mut self, row: usize, seen: usize) {
        self.truncate(row, seen);
        if seen == 0 {
            (self.rows[row].adapter, self.rows[row].source) = (0, None);
        }
    }

    /// The number of tokens that the row shares with the beginning of the prompt. It is 0 if the row's state
    /// depends on more than tokens.
    pub fn shared(&self, row: usize, prompt: &[u32]) -> usize {
        let one = &self.rows[row];
        if one.adapter != 0 || one.source.is_some() {
            return 0;
        }
        let tokens = one.features.keys().next().copied().unwrap_or(one.tokens.len());
        zip(prompt, &one.tokens[..tokens]).take_while(|(a, b)| a == b).count()
    }

    /// Sets the adapter of a row, which starts again.
    pub fn adapt(&mut self, row: usize, adapter: u32) {
        let one = &mut self.rows[row];
        (one.adapter, one.seen, one.written) = (adapter, 0, 0);
    }

    /// Removes all but the first `length` tokens of a row. If its state cannot go back, the row starts again
    /// with these tokens.
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

    /// Removes the tokens of a row that the network has not processed.
    pub fn settle_back(&mut self, row: usize) {
        let one = &mut self.rows[row];
        one.tokens.truncate(one.seen);
        one.features.split_off(&one.seen);
    }

    /// Runs one call with the next tokens of all rows. Rows without new tokens do not change. Returns an
    /// output for each row, and the time of the call.
    ///
    /// # Errors
    /// If the call fails. Then the state is lost, and the next steps process all rows from their beginning.
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

    /// The token that the module chose. The module prefers NaN, so one finite logit shows that all are valid.
    /// If the logit is not a number, returns the logits, so that the sampler can report the bad one.
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

    /// Runs one step of the texts in `running`, by row: calls the network, chooses tokens and appends them.
    /// Removes texts that ended from `running`, and returns them.
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

    /// Marks the state as lost: all rows start again.
    fn lose(&mut self) {
        self.state.clear();
        self.rows.iter_mut().for_each(|row| (row.seen, row.written) = (0, 0));
    }
}
