//! [`Batch`] continues several texts in parallel.

use std::ops::ControlFlow;

use trace::Role;

use crate::executor::{Executor, Iree};
use crate::generation::{EndedText, Generated, Generation, TokenOptions};
use crate::prefix::Adopted;
use crate::sequences::Sequences;
use crate::{
    Drafter, GenerateError, InputPart, Network, SavedSequence, Schedule, SequenceInput, TokenLogprobs,
};

/// A list of texts that a network continues in parallel. Each decode call reads the weights once
/// for all texts.
///
/// Each text occupies one row of the batch and has its own position. A text can join the batch
/// while other texts are generating. When a text ends, another text can use the row of the batch. A
/// text gets the same tokens as if the text were alone in the batch.
///
/// ```no_run
/// use std::ops::ControlFlow;
///
/// use tracewright_generate::{Batch, GenerateError, TokenOptions, Network};
///
/// fn all(network: &Network, prompts: &[&[u32]]) -> Result<Vec<Vec<u32>>, GenerateError> {
///     let options = TokenOptions::default();
///     let answers = Batch::new(network).generate(prompts, &options, |_, _| ControlFlow::Continue(()))?;
///     Ok(answers.into_iter().map(|answer| answer.tokens).collect())
/// }
/// ```
pub struct Batch<'a, E: Executor = Iree> {
    rows: Sequences<'a, E>,
    running: Vec<Option<Generation>>,
}

impl<'a, E: Executor> Batch<'a, E> {
    /// Creates a batch without texts.
    pub fn new(network: &'a Network<E>) -> Self {
        Self { rows: Sequences::new(network), running: (0..network.batch()).map(|_| None).collect() }
    }

    /// Creates a drafter for each row of the batch. A drafter proposes draft tokens. If the network
    /// has an entry point that verifies draft tokens, the texts get the same tokens as without
    /// drafters, in fewer network calls.
    #[must_use]
    pub fn speculate(mut self, drafter: impl FnMut() -> Box<dyn Drafter + 'a>) -> Self {
        self.rows.drafters = std::iter::repeat_with(drafter).take(self.running.len()).collect();
        self
    }

    /// Sets the schedule, which decides which tokens each network call processes. The default
    /// schedule is [`Together`](crate::Together).
    #[must_use]
    pub fn schedule(mut self, schedule: impl Schedule + 'a) -> Self {
        self.rows.schedule = Box::new(schedule);
        self
    }

    /// Keeps copies of the state of sliding windows and recurrent layers, so that
    /// [`join_seen`](Self::join_seen) can reuse this state. If a prompt joins through
    /// [`join_seen`](Self::join_seen), the batch copies the state after each network call that
    /// processes a chunk of the prompt.
    #[must_use]
    pub fn keep_prefixes(mut self) -> Self {
        self.rows.keeps_prefixes = true;
        self
    }

    /// Returns the number of texts that can still join the batch.
    pub fn free(&self) -> usize {
        self.running.iter().filter(|row| row.is_none()).count()
    }

    /// Adds a text that continues a prompt, and returns the row of the text.
    ///
    /// # Errors
    /// Returns an error if no row of the batch is free, the prompt is empty or too long, or a
    /// setting is out of range.
    pub fn join(&mut self, prompt: &[u32], options: &TokenOptions) -> Result<usize, GenerateError> {
        let row = self.free_row()?;
        self.begin(row, 0, prompt, options)
    }

    /// Adds a text to the batch like [`join`](Self::join). The text can begin with features instead
    /// of tokens, and can use an encoder's input or an adapter.
    ///
    /// # Errors
    /// Returns the same errors as [`join`](Self::join), or an error if the network does not take
    /// features, an encoder's input or adapters. After an error, the row of the batch stays free.
    pub fn join_input(
        &mut self,
        input: &SequenceInput<'_>,
        options: &TokenOptions,
    ) -> Result<usize, GenerateError> {
        let row = self.free_row()?;
        let has_features = input.parts.iter().any(|part| matches!(part, InputPart::Features { .. }));
        let width = if has_features { self.rows.network.features()? } else { 0 };
        let tokens = input.tokens(width);
        let generation = Generation::new(&tokens, options)?;
        self.rows.network.check(&tokens, 0)?;
        self.rows.begin(row, 0);
        if let Err(error) = self.fill(row, input) {
            self.rows.begin(row, 0);
            return Err(error);
        }
        self.running[row] = Some(generation);
        Ok(row)
    }

    /// Returns the free row of the batch that is nearest to the used rows, because a network call
    /// computes consecutive rows.
    fn free_row(&self) -> Result<usize, GenerateError> {
        let used = |row: &usize| self.running[*row].is_some();
        let rows = 0..self.running.len();
        let (first, last) = (rows.clone().find(used), rows.clone().rev().find(used));
        let span = |&row: &usize| last.unwrap_or(row).max(row) - first.unwrap_or(row).min(row);
        let free = rows.filter(|row| !used(row)).min_by_key(span);
        free.ok_or(GenerateError::Full { rows: self.running.len() })
    }

    fn fill(&mut self, row: usize, input: &SequenceInput<'_>) -> Result<(), GenerateError> {
        if input.adapter != 0 && !self.rows.network.adapts() {
            return Err(GenerateError::NoEntryPoint { role: Role::Adapter });
        }
        self.rows.adapt(row, input.adapter);
        if let Some(source) = input.source {
            self.rows.encode(row, source)?;
        } else if self.rows.network.reads_memory() {
            return Err(GenerateError::NoMemory);
        }
        input.parts.iter().try_for_each(|part| match *part {
            InputPart::Tokens(tokens) => self.rows.push(row, tokens),
            InputPart::Features { numbers, placeholder } => {
                self.rows.push_features(row, numbers, placeholder)
            }
        })
    }

    /// Adds a text like [`join`](Self::join), but reuses the state of an earlier text that begins
    /// with the same tokens. The network processes only the tokens of the prompt that follow the
    /// reused tokens.
    ///
    /// # Errors
    /// Returns the same errors as [`join`](Self::join).
    pub fn join_seen(&mut self, prompt: &[u32], options: &TokenOptions) -> Result<usize, GenerateError> {
        Generation::check(prompt, options)?;
        self.rows.network.check(prompt, 0)?;
        let free: Vec<usize> = (0..self.running.len()).filter(|&row| self.running[row].is_none()).collect();
        let adopted = self.rows.adopt(&free, prompt)?;
        let Adopted { row, seen, parts_at } =
            adopted.ok_or(GenerateError::Full { rows: self.running.len() })?;
        let row = self.begin(row, seen, prompt, options)?;
        let ends = if self.rows.keeps_prefixes {
            self.rows.network.ends(prompt.len(), parts_at)
        } else {
            Vec::new()
        };
        let one = &mut self.rows.rows[row];
        (one.is_kept, one.ends) = (true, ends);
        Ok(row)
    }

    /// Copies the state of the longest prefix of `tokens` for which the batch contains the state.
    /// `model` identifies the weights and the format of the weights.
    ///
    /// # Errors
    /// Returns an error if the state cannot be read from the device.
    pub fn save(&self, model: &str, tokens: &[u32]) -> Result<SavedSequence, GenerateError> {
        self.rows.save(model, tokens)
    }

    /// Loads a saved sequence into a free row of the batch, so that [`join_seen`](Self::join_seen) can reuse
    /// its state.
    ///
    /// # Errors
    /// Returns an error if the saved sequence was computed by another network or with other
    /// weights, or if no row of the batch is free.
    pub fn load(&mut self, model: &str, saved: SavedSequence) -> Result<(), GenerateError> {
        let free: Vec<usize> = (0..self.running.len()).filter(|&row| self.running[row].is_none()).collect();
        let row = self.rows.load(&free, model, saved)?;
        row.map(drop).ok_or(GenerateError::Full { rows: self.running.len() })
    }

    /// Starts to generate a text in a row of the batch. The state of the row `row` already contains
    /// the first `seen` tokens of the prompt.
    fn begin(
        &mut self,
        row: usize,
        seen: usize,
        prompt: &[u32],
        options: &TokenOptions,
    ) -> Result<usize, GenerateError> {
        let generation = Generation::new(&prompt[seen..], options)?;
        self.rows.network.check(prompt, 0)?;
        if self.rows.network.reads_memory() {
            return Err(GenerateError::NoMemory);
        }
        self.rows.begin(row, seen);
        self.rows.push(row, &prompt[seen..])?;
        self.running[row] = Some(generation);
        Ok(row)
    }

    /// Returns the log probabilities at each position of the text in a row of the batch. The
    /// returned list is empty unless [`TokenOptions::logprobs`] is set.
    pub fn logprobs(&self, row: usize) -> &[TokenLogprobs] {
        self.running.get(row).and_then(Option::as_ref).map_or(&[], Generation::logprobs)
    }

    /// Cancels the generation of all texts, and removes all tokens from the batch. Call `clear`
    /// after a call of the network has failed.
    pub fn clear(&mut self) {
        self.running.iter_mut().for_each(|text| *text = None);
        (0..self.running.len()).for_each(|row| self.rows.truncate(row, 0));
    }

    /// Cancels the generation of the text in a row of the batch, and returns the text's tokens so
    /// far. The result is `None` if no text uses the row of the batch.
    pub fn leave(&mut self, row: usize) -> Option<Generated> {
        let generation = self.running.get_mut(row)?.take()?;
        // The text is cancelled, so the network need not process the rest of its tokens.
        self.rows.settle_back(row);
        Some(generation.cancelled())
    }

    /// Runs one decode step for all texts. For each text, the network processes as many new tokens
    /// as fit into one network call. When the network has processed all tokens of a text, the
    /// sampler chooses the next token. `on_token` receives each chosen token with the row of the
    /// text, and can cancel the text. The function returns the texts that ended in the decode step.
    ///
    /// # Errors
    /// Returns an error if a call of the network fails, or if no token can be chosen for a text.
    pub fn step(
        &mut self,
        on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<(usize, Generated)>, GenerateError> {
        self.step_each(on_token)?.into_iter().map(|(row, ended)| Ok((row, ended?))).collect()
    }

    /// Runs one decode step like [`step`](Self::step). If no token can be chosen for a text, only this
    /// text ends, with the error. All other texts continue.
    ///
    /// # Errors
    /// Returns an error if a call of the network fails.
    pub fn step_each(
        &mut self,
        on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<EndedText>, GenerateError> {
        let ended = self.rows.step_all(&mut self.running, on_token);
        if ended.is_err() {
            // After a failed call, the state is lost. Free rows of the batch drop their tokens,
            // because no text needs these tokens.
            let free = (0..self.running.len()).filter(|&row| self.running[row].is_none());
            free.for_each(|row| self.rows.truncate(row, 0));
        }
        ended
    }

    /// Continues all `prompts`, and waits until all texts end. Prompts wait until a row of the batch is free.
    /// `on_token` receives each new token with the index of its prompt, and can cancel the text.
    ///
    /// # Errors
    /// Returns an error if a prompt is empty or too long, a setting is out of range, or a call fails.
    pub fn generate(
        &mut self,
        prompts: &[&[u32]],
        options: &TokenOptions,
        mut on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Generated>, GenerateError> {
        for prompt in prompts {
            Generation::check(prompt, options)?;
            self.rows.network.check(prompt, 0)?;
        }
        let mut answers: Vec<Option<Generated>> = prompts.iter().map(|_| None).collect();
        let mut prompt_of = vec![None; self.running.len()];
        let mut next = 0;
        while answers.iter().any(Option::is_none) {
            while next < prompts.len() && self.free() > 0 {
                prompt_of[self.join(prompts[next], options)?] = Some(next);
                next += 1;
            }
            let ended = self.step(|row, token| match prompt_of[row] {
                Some(prompt) => on_token(prompt, token),
                None => ControlFlow::Continue(()),
            })?;
            for (row, generated) in ended {
                if let Some(prompt) = prompt_of[row].take() {
                    answers[prompt] = Some(generated);
                }
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }
}
