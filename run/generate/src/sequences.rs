//! Runs a network on the sequences of a batch. Each sequence has its own position.

use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use trace::Part;

use crate::entry::{EntryCall, EntryKind};
use crate::executor::Executor;
use crate::generation::{EndedSequence, Generation, StepOutput, StepRequest};
use crate::network::{Feed, StepResults, floats, ids};
use crate::schedule::{Schedule, SequenceWork, Together};
use crate::sequence::{EncoderSource, Sequence, SequenceInput};
use crate::snapshot::Snapshot;
use crate::speculate::Governor;
use crate::{Drafter, Features, GenerateError, Network};

/// How long a decode step waits for constraints before the other sequences go on without theirs.
const PATIENCE: Duration = Duration::from_millis(50);

/// The sequences of the batch, and the state of the network's layers.
pub(crate) struct Sequences<'a, E: Executor> {
    pub network: &'a Network<E>,
    pub all: Vec<Sequence<E::Buffer>>,
    /// The state tensors, empty before the first call and after a failed call that consumed them.
    pub state: Vec<E::Buffer>,
    /// The encoder's tensors, which the decoder reads; empty before the encoder runs.
    pub memory: Vec<E::Buffer>,
    /// One drafter for each sequence. Without speculation, the list of drafters is empty.
    pub drafters: Vec<Box<dyn Drafter + 'a>>,
    governor: Governor,
    pub schedule: Box<dyn Schedule + 'a>,
    /// Whether sequences keep copies of state (such as that of sliding windows) for reuse.
    pub keeps_prefixes: bool,
    /// The number of network calls so far.
    pub clock: u64,
}

impl<'a, E: Executor> Sequences<'a, E> {
    pub fn new(network: &'a Network<E>) -> Self {
        let all = (0..network.batch()).map(|_| Sequence::default()).collect();
        let (state, memory, drafters) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            network,
            all,
            state,
            memory,
            drafters,
            governor: Governor::new(),
            schedule: Box::new(Together),
            keeps_prefixes: false,
            clock: 0,
        }
    }

    /// Whether the network has processed all tokens of a sequence.
    pub fn is_settled(&self, index: usize) -> bool {
        self.all[index].pending() == 0
    }

    /// Appends tokens to a sequence, which the next calls of the network process.
    pub fn push(&mut self, index: usize, tokens: &[u32]) -> Result<(), GenerateError> {
        self.network.check(tokens, self.all[index].tokens.len())?;
        self.all[index].tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// Appends positions with features to a sequence, each with the token id `placeholder`.
    pub fn push_features(
        &mut self,
        index: usize,
        features: &Features,
        placeholder: u32,
    ) -> Result<(), GenerateError> {
        features.check(self.network.features()?, self.network.context())?;
        let first = self.all[index].tokens.len();
        self.push(index, &vec![placeholder; features.positions()])?;
        self.all[index].input.features.push(first, features.clone());
        Ok(())
    }

    /// Puts a sequence in a place with the state after `length` tokens. After an error, the place is empty.
    pub fn begin(
        &mut self,
        index: usize,
        length: usize,
        tokens: Vec<u32>,
        input: SequenceInput,
    ) -> Result<(), GenerateError> {
        self.truncate(index, length);
        let one = &mut self.all[index];
        // The memory always has the output for the sources in `all`.
        let is_encoded = !self.memory.is_empty() && one.input.source == input.source;
        (one.tokens, one.input) = (tokens, input);
        one.prefix.ends = Vec::new();
        if one.input.source.is_none() || is_encoded {
            return Ok(());
        }
        self.encode().inspect_err(|_| self.all[index] = Sequence::default())
    }

    /// Runs the encoder on the sources of all sequences, because each call computes the whole batch.
    fn encode(&mut self) -> Result<(), GenerateError> {
        let entry = self.network.only(EntryKind::Encoder)?;
        let sources = self.all.iter().map(|one| one.input.source.as_ref());
        let feeds: Vec<Feed<'_>> =
            sources.map(|source| source.map_or_else(Feed::default, EncoderSource::feed)).collect();
        let mut memory = Vec::new();
        self.network.call(entry, 0, &feeds, &mut memory, &[])?;
        self.memory = memory;
        Ok(())
    }

    /// Keeps the first `length` tokens. If the state cannot be rewound, the next calls process them again.
    pub fn truncate(&mut self, index: usize, length: usize) {
        self.all[index].truncate(length, |written, to| self.network.rewinds(written, to));
    }

    /// Processes the next tokens of all sequences, and returns one output for each. A failed call loses the
    /// state, so the next calls process the tokens of all sequences again.
    pub fn step(&mut self, want: StepRequest) -> Result<Vec<StepOutput>, GenerateError> {
        self.extend();
        // Sequences with features come first. Those whose next positions have tokens wait until no
        // features are pending.
        let Some(of_features) = self.all.iter().filter_map(Sequence::next_is_features).max() else {
            return Ok(self.all.iter().map(|_| StepOutput::Nothing).collect());
        };
        let unfilled = |one: &Sequence<E::Buffer>| one.input.source.is_none() && one.pending() > 0;
        if self.network.reads_memory() && self.all.iter().any(unfilled) {
            return Err(GenerateError::NoMemory);
        }
        let apart = self.network.serves_parts();
        let work: Vec<SequenceWork> = self.all.iter().map(|one| one.work(of_features, apart)).collect();
        let is_drafted = self.all.iter().any(|one| one.draft.length > 0);
        let is_text = matches!(want, StepRequest::Nothing | StepRequest::Token | StepRequest::Logits);
        let plan =
            if is_text && (apart || !is_drafted) { self.schedule.plan(&work) } else { Together.plan(&work) };
        // A schedule divides neither drafts nor blocks of features.
        let planned = self.all.iter().zip(&work).zip(plan).map(|((one, work), planned)| match planned {
            0 if one.draft.length == 0 => 0,
            _ if one.draft.length > 0 || of_features => work.tokens,
            _ => planned.min(work.tokens),
        });
        let calls = self.calls(want, &planned.collect::<Vec<_>>(), of_features)?;
        let mut answers: Vec<StepOutput> = self.all.iter().map(|_| StepOutput::Nothing).collect();
        for call in calls {
            let found = self.call(&call, want, of_features);
            if found.is_err() {
                self.lose();
            }
            for (index, answer) in (call.first..).zip(found?) {
                if !matches!(answer, StepOutput::Nothing) {
                    answers[index] = answer;
                }
            }
        }
        Ok(answers)
    }

    /// Resets sequences whose rotary embedding changes with their length, so state depends only on tokens.
    fn extend(&mut self) {
        for one in &mut self.all {
            one.extend(self.network.original(one.tokens.len()));
        }
    }

    /// Calls an entry point with the tokens that are planned for a few sequences.
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
        // An earlier call of the same decode step may have advanced sequences that this call does
        // not process.
        let fed = |one: &Sequence<E::Buffer>, range: &Range<usize>| {
            if range.is_empty() { one.prefix.length..one.prefix.length } else { range.clone() }
        };
        let called = self.all[*first..].iter().zip(ranges);
        let feeds: Vec<Feed<'_>> =
            called.map(|(one, range)| one.feed(fed(one, range), of_features)).collect();
        let answered = self.network.call(entry, *first, &feeds, &mut self.state, &self.memory)?;
        let called = self.all[*first..].iter_mut().zip(ranges).filter(|(_, range)| !range.is_empty());
        for (one, range) in called {
            one.prefix.length = range.end;
            one.prefix.written = one.prefix.written.max(range.end);
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
        let each = hidden.chunks(hidden.len() / entry.sequences).zip(ranges);
        for ((hidden, range), drafter) in each.zip(&mut self.drafters[*first..]) {
            if !range.is_empty() {
                drafter.observe(range.start, &hidden[..hidden.len() / entry.chunk * range.len()]);
            }
        }
        Ok(())
    }

    /// Prepares the state of consecutive sequences from `first` on. With draft tokens, copies the state that
    /// the call overwrites, in case they are rejected.
    fn prepare(&mut self, first: usize, ranges: &[Range<usize>]) -> Result<(), GenerateError> {
        if self.state.is_empty() {
            self.state = self.network.empty()?;
        }
        for ((index, one), range) in self.all.iter_mut().enumerate().skip(first).zip(ranges) {
            if range.is_empty() {
                continue;
            }
            let Sequence { prefix, draft, .. } = one;
            prefix.used = self.clock;
            if let Some(snapshot) = prefix.restore.take() {
                self.network.restore(&mut self.state, index, snapshot)?;
            }
            let written = prefix.written.max(range.end);
            if draft.length > 0 && !self.network.rewinds(written, range.start) {
                let stays = |part: Part| !part.kind.rewinds(written, range.start);
                let at = (range.start, prefix.written);
                let snapshot = self.network.save(&self.state, index, at, stays)?;
                draft.before = Some(Snapshot { written, ..snapshot });
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
                let answer = |i: usize| {
                    if answers(i) { self.favoured(tokens[i], i, logits) } else { Ok(StepOutput::Nothing) }
                };
                (0..ranges.len()).map(answer).collect::<Result<_, _>>()?
            }
            (StepRequest::Logits, _, Some(logits)) if (0..ranges.len()).any(answers) => {
                let logits = floats(&self.network.executor.read(logits)?);
                let answer = |i: usize| {
                    if answers(i) {
                        StepOutput::Logits(vec![logits[i * vocabulary..][..vocabulary].to_vec()])
                    } else {
                        StepOutput::Nothing
                    }
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
            let earliest = range.len() - 1 - self.all[first + i].draft.length;
            let outputs = (earliest..range.len()).map(|place| after(i * entry.chunk + place));
            Ok(StepOutput::Verified(outputs.collect::<Result<_, _>>()?))
        };
        ranges.iter().enumerate().map(answer).collect()
    }

    /// Returns the most likely token if its logit is finite; the module returns a NaN's token, so one check
    /// suffices. Otherwise returns all logits, and sampling fails.
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

    /// Runs one decode step for `running`, one element per sequence: drafts, calls the network, and appends
    /// tokens. Removes and returns ended sequences, also with an error if no token can be chosen.
    pub fn step_all(
        &mut self,
        running: &mut [Option<Generation>],
        mut on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<EndedSequence>, GenerateError> {
        let start = Instant::now();
        if let Err(error) = self.draft(running) {
            self.all.iter_mut().for_each(Sequence::drop_draft);
            return Err(error);
        }
        for (one, generation) in self.all.iter_mut().zip(running.iter()) {
            one.prefix.has_prompt = generation.as_ref().is_some_and(Generation::has_prompt);
        }
        let want = running.iter().flatten().map(Generation::want).max().unwrap_or(StepRequest::Nothing);
        let answers = self.step(want)?;
        let time = start.elapsed();
        let (mut ended, end) = (Vec::new(), Instant::now() + PATIENCE);
        for (index, (place, answer)) in running.iter_mut().zip(answers).enumerate() {
            let Some(generation) = place else { continue };
            if !generation.is_waiting() {
                generation.spend(time);
                if matches!(answer, StepOutput::Nothing) {
                    continue;
                }
            }
            let patience = end.saturating_duration_since(Instant::now());
            let chosen = self.choose((index, generation), answer, patience, |token| on_token(index, token));
            if !matches!(chosen, Ok(ControlFlow::Continue(()))) {
                let generated = |generation: Generation| chosen.map(|_| generation.into_generated());
                ended.extend(place.take().map(|generation| (index, generated(generation))));
            }
        }
        Ok(ended)
    }

    /// Adds draft tokens to the sequences that generate, if drafting saves time.
    fn draft(&mut self, running: &[Option<Generation>]) -> Result<(), GenerateError> {
        self.extend();
        let Some(entry) = self.network.ready_verifier() else { return Ok(()) };
        let reads =
            |one: &Sequence<E::Buffer>| one.pending() > entry.chunk || one.next_is_features() == Some(true);
        // While the network processes a prompt in long chunks, no sequence gets draft tokens if each
        // call computes all sequences.
        let waits = !self.network.serves_parts() && self.all.iter().any(reads);
        if self.drafters.is_empty() || waits {
            return Ok(());
        }
        let mut drafted = 0;
        if let Some(certainty) = self.governor.allows() {
            let (context, vocabulary) = (self.network.context(), self.network.vocabulary());
            for ((one, drafter), generation) in self.all.iter_mut().zip(&mut self.drafters).zip(running) {
                let room = generation.as_ref().map_or(0, Generation::room_for_draft);
                if reads(one) || generation.as_ref().is_some_and(Generation::is_waiting) {
                    continue;
                }
                // Draft tokens never change the rotary embedding.
                let end = context.min(self.network.original(one.tokens.len()));
                let most = (entry.chunk - one.pending()).min(end - one.tokens.len()).min(room);
                if most == 0 {
                    continue;
                }
                let draft = drafter.draft(&one.tokens, most, certainty)?;
                let known = draft.iter().take(most).take_while(|token| (**token as usize) < vocabulary);
                let before = one.tokens.len();
                one.tokens.extend(known);
                one.draft.length = one.tokens.len() - before;
                drafted += one.draft.length;
            }
        }
        if drafted == 0 {
            self.governor.passed();
        }
        Ok(())
    }

    /// Chooses the next tokens from the outputs, as long as each equals its draft token. Returns
    /// `ControlFlow::Break` if the sequence ends.
    fn choose(
        &mut self,
        (index, generation): (usize, &mut Generation),
        answer: StepOutput,
        patience: Duration,
        mut on_token: impl FnMut(u32) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, GenerateError> {
        let outputs = match answer {
            StepOutput::Verified(outputs) => outputs,
            one => vec![one],
        };
        let context = self.network.context();
        let Sequence { tokens, draft, .. } = &self.all[index];
        let drafted = draft.length;
        let first = tokens.len() - drafted;
        let (mut length, mut chosen) = (first, Ok(Some(Vec::new())));
        let mut outputs = outputs.into_iter();
        // A draft is verified as a whole, so other sequences wait for the constraint of its sequence.
        let patience = (drafted == 0).then_some(patience);
        while let Some(output) = outputs.next() {
            chosen = generation.next(output, (&tokens[..length], context), patience, &mut on_token);
            let Ok(Some(new)) = &mut chosen else { break };
            let shared = new.iter().zip(&tokens[length..]).take_while(|(a, b)| a == b).count();
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
            self.truncate(index, length);
        }
        let Some(new) = chosen? else { return Ok(ControlFlow::Continue(())) };
        self.push(index, &new)?;
        Ok(if new.is_empty() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// Marks all state as lost, so that the next calls process all sequences from position 0.
    fn lose(&mut self) {
        self.state.clear();
        for one in &mut self.all {
            one.drop_draft();
            one.reset();
        }
    }
}
