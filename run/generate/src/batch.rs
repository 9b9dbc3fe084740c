//! [`Batch`] generates several sequences in parallel.

use std::ops::ControlFlow;

use crate::executor::{Executor, Iree};
use crate::generation::{EndedSequence, Generated, Generation, TokenOptions};
use crate::prefix::Reused;
use crate::sequences::Sequences;
use crate::{Drafter, GenerateError, Network, Prompt, SavedSequence, Schedule, TokenLogprobs};

/// Sequences that a network continues in parallel. Each decode call reads the weights once for all of them.
///
/// Each sequence has its own position and an index below [`Network::batch`]. A sequence can join the
/// batch while others are generating. After it has ended, another one can take its place. A sequence
/// gets the same tokens as if it were alone in the batch.
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
    sequences: Sequences<'a, E>,
    running: Vec<Option<Generation>>,
}

impl<'a, E: Executor> Batch<'a, E> {
    /// Creates a batch without sequences.
    pub fn new(network: &'a Network<E>) -> Self {
        let running = (0..network.batch()).map(|_| None).collect();
        Self { sequences: Sequences::new(network), running }
    }

    /// Creates a drafter for each sequence. With an entry point that verifies drafts, the sequences get the
    /// same tokens in fewer network calls.
    #[must_use]
    pub fn speculate(mut self, drafter: impl FnMut() -> Box<dyn Drafter + 'a>) -> Self {
        self.sequences.drafters = std::iter::repeat_with(drafter).take(self.running.len()).collect();
        self
    }

    /// Sets which tokens each network call processes, by default [`Together`](crate::Together).
    #[must_use]
    pub fn schedule(mut self, schedule: impl Schedule + 'a) -> Self {
        self.sequences.schedule = Box::new(schedule);
        self
    }

    /// Keeps copies of the state of sliding windows and recurrent layers for [reuse](Prompt::reuse), after
    /// each call that processes a chunk of a prompt that allows reuse.
    #[must_use]
    pub fn keep_prefixes(mut self) -> Self {
        self.sequences.keeps_prefixes = true;
        self
    }

    /// Returns the number of sequences that can still join the batch.
    pub fn free(&self) -> usize {
        self.free_places().count()
    }

    fn free_places(&self) -> impl Iterator<Item = usize> {
        (0..self.running.len()).filter(|&index| self.running[index].is_none())
    }

    /// Adds a sequence that continues a prompt, and returns its index. If the prompt allows
    /// [reuse](Prompt::reuse), the network processes only the tokens after the reused ones. After an error,
    /// the batch is unchanged.
    pub fn join(
        &mut self,
        prompt: impl Into<Prompt>,
        options: &TokenOptions,
    ) -> Result<usize, GenerateError> {
        let (tokens, input) = self.sequences.network.read(prompt.into())?;
        Generation::check(&tokens, options)?;
        let full = GenerateError::Full { sequences: self.running.len() };
        let Reused { index, length, parts_at } = if input.reuse {
            let free: Vec<usize> = self.free_places().collect();
            self.sequences.reuse(&free, &tokens, &input)?.ok_or(full)?
        } else {
            Reused { index: self.nearest().ok_or(full)?, length: 0, parts_at: None }
        };
        let generation = Generation::new(&tokens[length..], options)?;
        let keeps_snapshots = input.reuse && self.sequences.keeps_prefixes;
        let ends =
            if keeps_snapshots { self.sequences.network.ends(tokens.len(), parts_at) } else { Vec::new() };
        self.sequences.begin(index, length, tokens, input)?;
        self.sequences.all[index].prefix.ends = ends;
        self.running[index] = Some(generation);
        Ok(index)
    }

    /// Returns the free place nearest to the used ones, because a call computes consecutive sequences.
    fn nearest(&self) -> Option<usize> {
        let used = |index: &usize| self.running[*index].is_some();
        let all = 0..self.running.len();
        let (first, last) = (all.clone().find(used), all.rev().find(used));
        let span = |&index: &usize| last.unwrap_or(index).max(index) - first.unwrap_or(index).min(index);
        self.free_places().min_by_key(span)
    }

    /// Copies the state of the longest computed prefix of `tokens`. `model` identifies weights and format.
    pub fn save(&self, model: &str, tokens: &[u32]) -> Result<SavedSequence, GenerateError> {
        self.sequences.save(model, tokens)
    }

    /// Loads a saved sequence, so that a prompt can [reuse](Prompt::reuse) its state.
    pub fn load(&mut self, model: &str, saved: SavedSequence) -> Result<(), GenerateError> {
        let free: Vec<usize> = self.free_places().collect();
        let loaded = self.sequences.load(&free, model, saved)?;
        loaded.ok_or(GenerateError::Full { sequences: self.running.len() })
    }

    /// The log probabilities at each position; empty unless [`TokenOptions::logprobs`] is set.
    pub fn logprobs(&self, index: usize) -> &[TokenLogprobs] {
        self.running.get(index).and_then(Option::as_ref).map_or(&[], Generation::logprobs)
    }

    /// Cancels all sequences and empties the batch. Call `clear` after a call of the network has failed.
    pub fn clear(&mut self) {
        self.running.fill_with(|| None);
        self.forget();
    }

    /// Removes what the free places of the batch have computed with an adapter, after its matrices have changed. No
    /// running sequence may have the adapter.
    pub fn forget_adapter(&mut self, adapter: u32) {
        let has_it = |index: &usize| self.sequences.all[*index].input.adapter == adapter;
        let free: Vec<usize> = self.free_places().filter(has_it).collect();
        free.into_iter().for_each(|index| self.sequences.truncate(index, 0));
    }

    /// Removes the tokens from the free places of the batch.
    fn forget(&mut self) {
        let free: Vec<usize> = self.free_places().collect();
        free.into_iter().for_each(|index| self.sequences.truncate(index, 0));
    }

    /// Cancels a sequence, and returns its tokens so far, or `None` if there is no such sequence.
    pub fn leave(&mut self, index: usize) -> Option<Generated> {
        let generation = self.running.get_mut(index)?.take()?;
        // The network need not process the rest of a cancelled sequence.
        self.sequences.all[index].drop_pending();
        Some(generation.cancelled())
    }

    /// Runs one decode step for all sequences: each processes as many new tokens as fit into one call, then
    /// samples. `on_token` receives each chosen token with the sequence's index, and can cancel the sequence.
    /// Returns the sequences that ended.
    pub fn step(
        &mut self,
        on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<(usize, Generated)>, GenerateError> {
        self.step_each(on_token)?.into_iter().map(|(index, ended)| Ok((index, ended?))).collect()
    }

    /// Like [`step`](Self::step), but if no token can be chosen for a sequence, only it ends, with the error.
    pub fn step_each(
        &mut self,
        on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<EndedSequence>, GenerateError> {
        // After a failed call, the state is lost.
        self.sequences.step_all(&mut self.running, on_token).inspect_err(|_| self.forget())
    }

    /// Continues all `prompts` until all end; prompts wait for a free place. `on_token` receives each new
    /// token with its prompt's index, and can cancel the sequence.
    pub fn generate<P: Clone + Into<Prompt>>(
        &mut self,
        prompts: &[P],
        options: &TokenOptions,
        mut on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Generated>, GenerateError> {
        for prompt in prompts {
            Generation::check(&self.sequences.network.read(prompt.clone().into())?.0, options)?;
        }
        let mut answers: Vec<Option<Generated>> = prompts.iter().map(|_| None).collect();
        let mut prompt_of = vec![None; self.running.len()];
        let mut next = 0;
        while answers.iter().any(Option::is_none) {
            while next < prompts.len() && self.free() > 0 {
                prompt_of[self.join(prompts[next].clone(), options)?] = Some(next);
                next += 1;
            }
            let ended = self.step(|index, token| match prompt_of[index] {
                Some(prompt) => on_token(prompt, token),
                None => ControlFlow::Continue(()),
            })?;
            for (index, generated) in ended {
                if let Some(prompt) = prompt_of[index].take() {
                    answers[prompt] = Some(generated);
                }
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }
}
