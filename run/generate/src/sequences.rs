//! Runs a network on the sequences of a batch. Each sequence occupies one row of the batch and has
//! its own position.

use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use trace::Part;

use crate::entry::{EntryCall, EntryKind};
use crate::executor::Executor;
use crate::generation::{EndedText, Generation, StepOutput, StepRequest};
use crate::network::{Feed, StepResults, floats, ids};
use crate::row::{EncoderSource, Row};
use crate::schedule::{RowWork, Schedule, Together};
use crate::snapshot::Snapshot;
use crate::speculate::Governor;
use crate::{Drafter, EncoderInput, GenerateError, Network};

/// The time for which a decode step waits for the constraints of texts. If a constraint takes longer,
/// the other texts go on without its text.
const PATIENCE: Duration = Duration::from_millis(50);

/// The sequences of the batch, and the state of the network's layers.
pub(crate) struct Sequences<'a, E: Executor> {
    pub network: &'a Network<E>,
    pub rows: Vec<Row<E::Buffer>>,
    /// The state tensors. The list of state tensors is empty before the first network call, and
    /// after a failed call that consumed the state.
    pub state: Vec<E::Buffer>,
    /// The tensors that the encoder returned, which the decoder reads. Before the encoder runs, the
    /// list of the encoder's tensors is empty.
    pub memory: Vec<E::Buffer>,
    /// One drafter for each row of the batch. Without speculation, the list of drafters is empty.
    pub drafters: Vec<Box<dyn Drafter + 'a>>,
    governor: Governor,
    pub schedule: Box<dyn Schedule + 'a>,
    /// Whether Tracewright keeps the state (such as the KV cache) of ended texts for later texts
    /// that begin with the same tokens.
    pub keeps_prefixes: bool,
    /// The number of network calls so far.
    pub clock: u64,
}

impl<'a, E: Executor> Sequences<'a, E> {
    pub fn new(network: &'a Network<E>) -> Self {
        let rows = (0..network.batch()).map(|_| Row::default()).collect();
        let (state, memory, drafters) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            network,
            rows,
            state,
            memory,
            drafters,
            governor: Governor::new(),
            schedule: Box::new(Together),
            keeps_prefixes: false,
            clock: 0,
        }
    }

    /// Returns the tokens of a row of the batch, including tokens that the network has not
    /// processed yet.
    pub fn tokens(&self, row: usize) -> &[u32] {
        &self.rows[row].tokens
    }

    /// Whether the network has processed all tokens of a row of the batch.
    pub fn is_settled(&self, row: usize) -> bool {
        self.rows[row].seen == self.rows[row].tokens.len()
    }

    /// Appends tokens to a row of the batch. The next calls of the network process the appended
    /// tokens.
    ///
    /// # Errors
    /// Returns an error if the tokens exceed the context, or if a token is not in the vocabulary.
    pub fn push(&mut self, row: usize, tokens: &[u32]) -> Result<(), GenerateError> {
        self.network.check(tokens, self.rows[row].tokens.len())?;
        self.rows[row].tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// Appends positions with features to a row of the batch. Each position with features has the
    /// token id `placeholder`.
    ///
    /// # Errors
    /// Returns an error if the positions exceed the context, or if the network takes a different
    /// number of features per position.
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

    /// Runs the encoder for a row of the batch, and resets the row to position 0. Each call of the
    /// encoder computes all rows of the batch, so the call computes the outputs of all rows again.
    ///
    /// # Errors
    /// Returns an error if the network has no encoder, the input is too long, or the call fails.
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
        self.network.call(entry, 0, &feeds, &mut memory, &[])?;
        self.memory = memory;
        self.truncate(row, 0);
        self.rows[row].source = Some(source);
        Ok(())
    }

    /// Removes all tokens of a row of the batch except the first `seen` tokens. If `seen` is 0, the
    /// function removes the encoder input and the adapter of the row.
    pub fn begin(&mut self, row: usize, seen: usize) {
        self.truncate(row, seen);
        (self.rows[row].is_kept, self.rows[row].ends) = (false, Vec::new());
        if seen == 0 {
            (self.rows[row].adapter, self.rows[row].source) = (0, None);
        }
    }

    /// Sets the adapter for a row of the batch, and resets the row to position 0.
    pub fn adapt(&mut self, row: usize, adapter: u32) {
        let one = &mut self.rows[row];
        one.adapter = adapter;
        one.begin_again();
    }

    /// Removes all tokens of a row of the batch except the first `length` tokens. If the row's
    /// state cannot be rewound to `length` tokens, the next calls process the first `length` tokens
    /// again.
    pub fn truncate(&mut self, row: usize, length: usize) {
        self.rows[row].truncate(length, |written, to| self.network.rewinds(written, to));
    }

    /// Removes the tokens of a row of the batch that the network has not processed yet.
    pub fn settle_back(&mut self, row: usize) {
        let one = &mut self.rows[row];
        one.tokens.truncate(one.seen);
        one.features.split_off(&one.seen);
    }

    /// Processes the next tokens of all rows of the batch. Rows of the batch without new tokens do
    /// not change. The function returns one output for each row of the batch.
    ///
    /// # Errors
    /// Returns an error if the call of the network fails. After a failed call, the state of the
    /// batch is lost, and the next calls process the tokens of all rows again.
    pub fn step(&mut self, want: StepRequest) -> Result<Vec<StepOutput>, GenerateError> {
        self.extend();
        // Rows with features come first. Rows whose next positions have tokens wait until no row
        // has unprocessed features.
        let Some(of_features) = self.rows.iter().filter_map(Row::next_is_features).max() else {
            return Ok(self.rows.iter().map(|_| StepOutput::Nothing).collect());
        };
        let unfilled = |row: &Row<E::Buffer>| row.source.is_none() && row.seen < row.tokens.len();
        if self.network.reads_memory() && self.rows.iter().any(unfilled) {
            return Err(GenerateError::NoMemory);
        }
        let apart = self.network.serves_parts();
        let work: Vec<RowWork> = self.rows.iter().map(|row| row.work(of_features, apart)).collect();
        let is_drafted = self.rows.iter().any(|row| row.drafted > 0);
        let is_text = matches!(want, StepRequest::Nothing | StepRequest::Token | StepRequest::Logits);
        let plan = match is_text && (apart || !is_drafted) {
            true => self.schedule.plan(&work),
            false => Together.plan(&work),
        };
        let planned = self.rows.iter().zip(&work).zip(plan).map(|((row, work), planned)| match row.drafted {
            0 => planned.min(work.tokens),
            _ => work.tokens,
        });
        let calls = self.calls(want, &planned.collect::<Vec<_>>(), of_features)?;
        let mut answers: Vec<StepOutput> = self.rows.iter().map(|_| StepOutput::Nothing).collect();
        for call in calls {
            let found = self.call(&call, want, of_features);
            if found.is_err() {
                self.lose();
            }
            for (row, answer) in (call.first..).zip(found?) {
                if !matches!(answer, StepOutput::Nothing) {
                    answers[row] = answer;
                }
            }
        }
        Ok(answers)
    }

    /// Resets the rows to position 0 whose sequences became too long for their rotary embedding, or
    /// short enough for the original one. As a result, the state of a sequence depends only on its
    /// tokens.
    fn extend(&mut self) {
        for row in &mut self.rows {
            row.extend(self.network.original(row.tokens.len()));
        }
    }

    /// Calls an entry point with the tokens that are planned for a few rows of the batch.
    fn call(
        &mut self,
        call: &EntryCall<'a>,
        want: StepRequest,
        of_features: bool,
    ) -> Result<Vec<StepOutput>, GenerateError> {
        let EntryCall { entry, first, ranges } = call;
        if entry.features().is_some() != of_features {
            let why = "takes tokens, expected features".into();
            return Err(GenerateError::EntryPoint { name: entry.name.clone(), why });
        }
        self.clock += 1;
        self.prepare(*first, ranges)?;
        // An earlier call of the same decode step may have advanced rows that this call does not
        // process.
        let shown = |row: &Row<E::Buffer>, range: &Range<usize>| match range.is_empty() {
            true => row.seen..row.seen,
            false => range.clone(),
        };
        let rows = self.rows[*first..].iter().zip(ranges);
        let feeds: Vec<Feed<'_>> =
            rows.map(|(row, range)| row.feed(shown(row, range), of_features)).collect();
        let answered = self.network.call(entry, *first, &feeds, &mut self.state, &self.memory)?;
        let shown = self.rows[*first..].iter_mut().zip(ranges).filter(|(_, range)| !range.is_empty());
        for (row, range) in shown {
            row.seen = range.end;
            row.written = row.written.max(range.end);
        }
        if let Some(hidden) = &answered.hidden {
            self.observe(hidden, call)?;
        }
        self.keep_snapshots(*first, ranges)?;
        match entry.kind {
            EntryKind::Verifier => self.verified(want, &answered, call),
            _ => self.answers(want, answered, call),
        }
    }

    /// Passes the hidden states that a call returned to the drafters.
    fn observe(
        &mut self,
        hidden: &E::Buffer,
        EntryCall { entry, first, ranges }: &EntryCall<'a>,
    ) -> Result<(), GenerateError> {
        if self.drafters.is_empty() {
            return Ok(());
        }
        let hidden = floats(&self.network.executor.read(hidden)?);
        let rows = hidden.chunks(hidden.len() / entry.rows).zip(ranges);
        for ((row, range), drafter) in rows.zip(&mut self.drafters[*first..]) {
            if !range.is_empty() {
                drafter.observe(range.start, &row[..row.len() / entry.chunk * range.len()]);
            }
        }
        Ok(())
    }

    /// Prepares the state of consecutive rows, beginning with the row `first`, for a call. If a row
    /// of the batch has draft tokens, the function copies the state that the call overwrites,
    /// because Tracewright needs this state if draft tokens are rejected.
    fn prepare(&mut self, first: usize, ranges: &[Range<usize>]) -> Result<(), GenerateError> {
        if self.state.is_empty() {
            self.state = self.network.empty()?;
        }
        for ((number, row), range) in self.rows.iter_mut().enumerate().skip(first).zip(ranges) {
            if range.is_empty() {
                continue;
            }
            row.used = self.clock;
            if let Some(snapshot) = row.restore.take() {
                self.network.restore(&mut self.state, number, snapshot)?;
            }
            let written = row.written.max(range.end);
            if row.drafted > 0 && !self.network.rewinds(written, range.start) {
                let stays = |part: Part| !part.kind.rewinds(written, range.start);
                let (start, before) = (range.start, row.written);
                let snapshot = self.network.save(&self.state, number, (start, before), stays)?;
                row.before_draft = Some(Snapshot { written, ..snapshot });
            }
        }
        Ok(())
    }

    fn answers(
        &self,
        want: StepRequest,
        answered: StepResults<E::Buffer>,
        EntryCall { entry, first, ranges }: &EntryCall<'a>,
    ) -> Result<Vec<StepOutput>, GenerateError> {
        let (first, chunk) = (*first, entry.chunk);
        let answers = |i: usize| !ranges[i].is_empty() && self.is_settled(first + i);
        let vocabulary = self.network.vocabulary();
        let StepResults { logits, token, .. } = &answered;
        Ok(match (want, token, logits) {
            (StepRequest::Token, Some(token), Some(logits)) if (0..ranges.len()).any(answers) => {
                let tokens = ids(&self.network.executor.read(token)?);
                let answer = |i: usize| match answers(i) {
                    true => self.favoured(tokens[i], i, logits),
                    false => Ok(StepOutput::Nothing),
                };
                (0..ranges.len()).map(answer).collect::<Result<_, _>>()?
            }
            (StepRequest::Logits, _, Some(logits)) if (0..ranges.len()).any(answers) => {
                let logits = floats(&self.network.executor.read(logits)?);
                let answer = |i: usize| match answers(i) {
                    true => StepOutput::Logits(vec![logits[i * vocabulary..][..vocabulary].to_vec()]),
                    false => StepOutput::Nothing,
                };
                (0..ranges.len()).map(answer).collect()
            }
            (StepRequest::Each, Some(token), _) => {
                let tokens = ids(&self.network.executor.read(token)?);
                if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
                    return Err(GenerateError::Favoured { token, vocabulary });
                }
                let answer = |(i, range): (usize, &Range<usize>)| {
                    StepOutput::Tokens(tokens[i * chunk..][..range.len()].to_vec())
                };
                ranges.iter().enumerate().map(answer).collect()
            }
            (StepRequest::All, _, Some(logits)) => {
                let logits = floats(&self.network.executor.read(logits)?);
                let after = |i: usize, place: usize| {
                    logits[(i * chunk + place) * vocabulary..][..vocabulary].to_vec()
                };
                let answer = |(i, range): (usize, &Range<usize>)| {
                    StepOutput::Logits((0..range.len()).map(|place| after(i, place)).collect())
                };
                ranges.iter().enumerate().map(answer).collect()
            }
            _ => ranges.iter().map(|_| StepOutput::Nothing).collect(),
        })
    }

    /// Returns the output of a call that verifies draft tokens.
    fn verified(
        &self,
        want: StepRequest,
        answered: &StepResults<E::Buffer>,
        EntryCall { entry, first, ranges }: &EntryCall<'a>,
    ) -> Result<Vec<StepOutput>, GenerateError> {
        let (Some(token), Some(logits)) = (&answered.token, &answered.logits) else {
            return Ok(ranges.iter().map(|_| StepOutput::Nothing).collect());
        };
        let vocabulary = self.network.vocabulary();
        let tokens = ids(&self.network.executor.read(token)?);
        let all = match want {
            StepRequest::Token => Vec::new(),
            _ => floats(&self.network.executor.read(logits)?),
        };
        let after = |place: usize| match want {
            StepRequest::Token => self.favoured(tokens[place], place, logits),
            _ => Ok(StepOutput::Logits(vec![all[place * vocabulary..][..vocabulary].to_vec()])),
        };
        let answer = |(i, range): (usize, &Range<usize>)| {
            if range.is_empty() || !self.is_settled(first + i) {
                return Ok(StepOutput::Nothing);
            }
            let earliest = range.len() - 1 - self.rows[first + i].drafted;
            let outputs = (earliest..range.len()).map(|place| after(i * entry.chunk + place));
            Ok(StepOutput::Verified(outputs.collect::<Result<_, _>>()?))
        };
        ranges.iter().enumerate().map(answer).collect()
    }

    /// Returns the most likely token, if the token's logit is finite. If any logit is NaN, the
    /// compiled module returns the token with this logit, so the function needs to check only one
    /// logit. If the logit is not finite, the function returns all logits, and sampling fails with
    /// an error.
    fn favoured(&self, token: u32, place: usize, logits: &E::Buffer) -> Result<StepOutput, GenerateError> {
        let vocabulary = self.network.vocabulary();
        if token as usize >= vocabulary {
            return Err(GenerateError::Favoured { token, vocabulary });
        }
        let first = place * vocabulary;
        let logit = self.network.executor.read_element(logits, first + token as usize)?;
        if floats(&logit).iter().all(|logit| logit.is_finite()) {
            return Ok(StepOutput::Token(token));
        }
        let logits = floats(&self.network.executor.read(logits)?);
        Ok(StepOutput::Logits(vec![logits[first..][..vocabulary].to_vec()]))
    }

    /// Runs one decode step for the texts in `running`, which has one element per row of the batch.
    /// The function drafts tokens, calls the network, and appends the chosen tokens. The function
    /// removes ended texts from `running` and returns them.
    ///
    /// # Errors
    /// Returns an error if the call fails. If no token can be chosen for a text, the text ends with
    /// the error.
    pub fn step_all(
        &mut self,
        running: &mut [Option<Generation>],
        mut on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<EndedText>, GenerateError> {
        let begin = Instant::now();
        if let Err(error) = self.draft(running) {
            self.rows.iter_mut().for_each(Row::drop_draft);
            return Err(error);
        }
        for (row, text) in self.rows.iter_mut().zip(running.iter()) {
            row.decodes = text.as_ref().is_some_and(Generation::has_begun);
        }
        let want = running.iter().flatten().map(Generation::want).max().unwrap_or(StepRequest::Nothing);
        let answers = self.step(want)?;
        let time = begin.elapsed();
        let (mut ended, end) = (Vec::new(), Instant::now() + PATIENCE);
        for (row, (place, answer)) in running.iter_mut().zip(answers).enumerate() {
            let Some(generation) = place else { continue };
            if !generation.is_waiting() {
                generation.spend(time);
                if matches!(answer, StepOutput::Nothing) {
                    continue;
                }
            }
            let patience = end.saturating_duration_since(Instant::now());
            let taken = self.take((row, generation), answer, patience, |token| on_token(row, token));
            if !matches!(taken, Ok(ControlFlow::Continue(()))) {
                let text = |generation: Generation| taken.map(|_| generation.into_generated());
                ended.extend(place.take().map(|generation| (row, text(generation))));
            }
        }
        Ok(ended)
    }

    /// Adds draft tokens to the rows that are generating, if drafting saves time.
    fn draft(&mut self, running: &[Option<Generation>]) -> Result<(), GenerateError> {
        self.extend();
        let Some(entry) = self.network.verifier() else { return Ok(()) };
        let new = |row: &Row<E::Buffer>| row.tokens.len() - row.seen;
        let reads = |row: &Row<E::Buffer>| new(row) > entry.chunk || row.next_is_features() == Some(true);
        // While the network processes a prompt in long chunks, no row gets draft tokens if each
        // call computes all rows.
        let waits = !self.network.serves_parts() && self.rows.iter().any(reads);
        if self.drafters.is_empty() || waits {
            return Ok(());
        }
        let mut drafted = 0;
        if let Some(certainty) = self.governor.allows() {
            let (context, vocabulary) = (self.network.context(), self.network.vocabulary());
            for ((row, drafter), generation) in self.rows.iter_mut().zip(&mut self.drafters).zip(running) {
                let room = generation.as_ref().map_or(0, Generation::room_for_draft);
                if reads(row) || generation.as_ref().is_some_and(Generation::is_waiting) {
                    continue;
                }
                // Draft tokens never change the rotary embedding.
                let end = context.min(self.network.original(row.tokens.len()));
                let most = (entry.chunk - new(row)).min(end - row.tokens.len()).min(room);
                if most == 0 {
                    continue;
                }
                let draft = drafter.draft(&row.tokens, most, certainty)?;
                let known = draft.iter().take(most).take_while(|token| (**token as usize) < vocabulary);
                let before = row.tokens.len();
                row.tokens.extend(known);
                row.drafted = row.tokens.len() - before;
                drafted += row.drafted;
            }
        }
        if drafted == 0 {
            self.governor.passed();
        }
        Ok(())
    }

    /// Chooses the next tokens of a text from the network's outputs. As long as a chosen token
    /// equals the draft token, the function continues with the output after this draft token.
    /// Returns `ControlFlow::Break` if the text ends.
    fn take(
        &mut self,
        (row, generation): (usize, &mut Generation),
        answer: StepOutput,
        patience: Duration,
        mut on_token: impl FnMut(u32) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, GenerateError> {
        let outputs = match answer {
            StepOutput::Verified(outputs) => outputs,
            one => vec![one],
        };
        let context = self.network.context();
        let one = &self.rows[row];
        let drafted = one.drafted;
        let first = one.tokens.len() - drafted;
        let (mut length, mut chosen) = (first, Ok(Some(Vec::new())));
        let mut outputs = outputs.into_iter();
        // A draft is verified as a whole, so other texts wait for the constraint of its text.
        let patience = (drafted == 0).then_some(patience);
        while let Some(output) = outputs.next() {
            chosen = generation.next(output, (&one.tokens[..length], context), patience, &mut on_token);
            let Ok(Some(new)) = &mut chosen else { break };
            let shared = new.iter().zip(&one.tokens[length..]).take_while(|(a, b)| a == b).count();
            length += shared;
            let is_right = shared > 0 && shared == new.len();
            new.drain(..shared);
            if !is_right {
                break;
            }
            // If a grammar requires several tokens, the next token is chosen from the output after
            // the last of these tokens.
            outputs.by_ref().take(shared - 1).for_each(drop);
        }
        if drafted > 0 {
            generation.count_draft(drafted, length - first);
            self.governor.verified(length - first);
            self.truncate(row, length);
        }
        let Some(new) = chosen? else { return Ok(ControlFlow::Continue(())) };
        self.push(row, &new)?;
        Ok(if new.is_empty() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// Marks the state of all rows as lost, so that the next calls process all rows from position
    /// 0.
    fn lose(&mut self) {
        self.state.clear();
        for row in &mut self.rows {
            row.drop_draft();
            row.begin_again();
        }
    }
}
