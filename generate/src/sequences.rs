//! The engine that steps a network: rows of tokens, each at a position of its own.

use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use crate::executor::Executor;
use crate::generation::{Generated, Generation, LogitsMode, StepOutput};
use crate::network::{Feed, StepResults, floats, ids};
use crate::{GenerateError, Network};

/// The rows of a network, and what its layers remember of them.
pub(crate) struct Sequences<'a, E: Executor> {
    pub network: &'a Network<E>,
    rows: Vec<Row>,
    /// Empty before the first call, and after a failed one, which consumed it.
    state: Vec<E::Buffer>,
}

/// The tokens of a row.
#[derive(Clone, Default)]
struct Row {
    tokens: Vec<u32>,
    /// How many of them the network has seen.
    seen: usize,
    /// Below which position something was written since the row began.
    written: usize,
}

impl<'a, E: Executor> Sequences<'a, E> {
    pub fn new(network: &'a Network<E>) -> Self {
        Self { network, rows: vec![Row::default(); network.batch()], state: Vec::new() }
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

    /// Takes back all but the first `length` tokens of a row. Where its state cannot go back there, it begins again.
    pub fn truncate(&mut self, row: usize, length: usize) {
        let one = &mut self.rows[row];
        one.tokens.truncate(length);
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
    }

    /// Shows the next tokens of all rows to the network, as many as one call takes. Sequences that it has seen stay as
    /// they are. Returns an answer for each row, and the time of the call.
    ///
    /// # Errors
    /// If the call fails. Then the state is lost, and the next steps show all rows from their beginning.
    pub fn step(&mut self, want: LogitsMode) -> Result<(Vec<StepOutput>, Duration), GenerateError> {
        let begin = Instant::now();
        let longest = self.rows.iter().map(|row| row.tokens.len() - row.seen).max().unwrap_or_default();
        if longest == 0 {
            return Ok((self.rows.iter().map(|_| StepOutput::Nothing).collect(), Duration::ZERO));
        }
        let entry = match want {
            LogitsMode::All => self.network.scorer()?,
            _ => self.network.step(longest),
        };
        if self.state.is_empty() {
            self.state = self.network.empty()?;
        }
        let feed = |row: &Row| {
            let end = row.tokens.len().min(row.seen + entry.chunk);
            row.seen..end
        };
        let ranges: Vec<_> = self.rows.iter().map(feed).collect();
        let feeds: Vec<Feed<'_>> = (self.rows.iter().zip(&ranges))
            .map(|(row, range)| Feed { tokens: &row.tokens[range.clone()], start: range.start })
            .collect();
        let answered = match self.network.call(entry, &feeds, &mut self.state) {
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
        want: LogitsMode,
        answered: StepResults<E::Buffer>,
        ranges: &[Range<usize>],
        chunk: usize,
    ) -> Result<Vec<StepOutput>, GenerateError> {
        let answers = |row: usize| !ranges[row].is_empty() && self.is_settled(row);
        let vocabulary = self.network.vocabulary();
        Ok(match (want, &answered.token) {
            (LogitsMode::Token, Some(token)) if (0..ranges.len()).any(answers) => {
                let tokens = ids(&self.network.executor.read(token)?);
                let answer = |row: usize| match answers(row) {
                    true => self.favoured(tokens[row], row, &answered.logits),
                    false => Ok(StepOutput::Nothing),
                };
                (0..ranges.len()).map(answer).collect::<Result<_, _>>()?
            }
            (LogitsMode::Logits, _) if (0..ranges.len()).any(answers) => {
                let logits = floats(&self.network.executor.read(&answered.logits)?);
                let answer = |row: usize| match answers(row) {
                    true => StepOutput::Logits(vec![logits[row * vocabulary..][..vocabulary].to_vec()]),
                    false => StepOutput::Nothing,
                };
                (0..ranges.len()).map(answer).collect()
            }
            (LogitsMode::All, _) => {
                let logits = floats(&self.network.executor.read(&answered.logits)?);
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
        let want = running.iter().flatten().map(Generation::want).max().unwrap_or(LogitsMode::Nothing);
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
