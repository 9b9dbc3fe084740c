//! Several texts at once.

use std::ops::ControlFlow;

use crate::executor::{Executor, Iree};
use crate::generation::{Generated, Generation, TokenOptions};
use crate::sequences::Sequences;
use crate::{Drafter, GenerateError, Network};

/// Texts that a network continues at once: each step reads the weights once for all of them.
///
/// Each has a row, which stands where it stands: a text may join while others run, and another takes its row when it
/// has ended. Each gets the tokens that it would get alone.
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
    /// A batch without texts.
    pub fn new(network: &'a Network<E>) -> Self {
        Self { rows: Sequences::new(network), running: (0..network.batch()).map(|_| None).collect() }
    }

    /// The batch with a drafter for each row. The texts get the same tokens with fewer calls, if the network has an entry point
    /// that verifies drafts.
    #[must_use]
    pub fn speculate(mut self, drafter: impl FnMut() -> Box<dyn Drafter + 'a>) -> Self {
        self.rows.drafters = std::iter::repeat_with(drafter).take(self.running.len()).collect();
        self
    }

    /// The batch with rows that keep what [`join_seen`](Self::join_seen) needs of windows and recurrent state: copies of it, made
    /// between the chunks of a prompt.
    #[must_use]
    pub fn keep_prefixes(mut self) -> Self {
        self.rows.keeps_prefixes = true;
        self
    }

    /// How many more texts may join.
    pub fn free(&self) -> usize {
        self.running.iter().filter(|row| row.is_none()).count()
    }

    /// Begins to continue a prompt, and returns its row.
    ///
    /// # Errors
    /// If no row is free, the prompt is empty or does not fit, or a setting is out of range.
    pub fn join(&mut self, prompt: &[u32], options: &TokenOptions) -> Result<usize, GenerateError> {
        let row = self.running.iter().position(Option::is_none);
        let row = row.ok_or(GenerateError::Full { rows: self.running.len() })?;
        self.begin(row, 0, prompt, options)
    }

    /// As [`join`](Self::join), with the state of the longest beginning of the prompt that any row has seen. The network computes
    /// the rest alone.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn join_seen(&mut self, prompt: &[u32], options: &TokenOptions) -> Result<usize, GenerateError> {
        Generation::new(prompt, options)?;
        self.rows.network.check(prompt, 0)?;
        let free: Vec<usize> = (0..self.running.len()).filter(|&row| self.running[row].is_none()).collect();
        let adopted = self.rows.adopt(&free, prompt)?;
        let (row, seen) = adopted.ok_or(GenerateError::Full { rows: self.running.len() })?;
        self.begin(row, seen, prompt, options)
    }

    /// Begins in a free row, of which the first `seen` tokens are those of the prompt.
    fn begin(
        &mut self,
        row: usize,
        seen: usize,
        prompt: &[u32],
        options: &TokenOptions,
    ) -> Result<usize, GenerateError> {
        let generation = Generation::new(&prompt[seen..], options)?;
        self.rows.network.check(prompt, 0)?;
        self.rows.truncate(row, seen);
        self.rows.push(row, &prompt[seen..])?;
        self.running[row] = Some(generation);
        Ok(row)
    }

    /// Forgets what all rows have seen, and breaks off their texts: what is left to do after a call that failed.
    pub fn clear(&mut self) {
        self.running.iter_mut().for_each(|text| *text = None);
        (0..self.running.len()).for_each(|row| self.rows.truncate(row, 0));
    }

    /// Breaks off the text of a row, if there is one, and returns what it has.
    pub fn leave(&mut self, row: usize) -> Option<Generated> {
        let generation = self.running.get_mut(row)?.take()?;
        // What it still had to show, nobody waits for.
        self.rows.settle_back(row);
        Some(generation.cancelled())
    }

    /// One step of all texts: each is shown its next tokens, as many as one call takes, and chooses one if it has
    /// seen them all. `on_token` gets it with its row, and may break that text off. Returns the texts that ended;
    /// their rows are free.
    ///
    /// # Errors
    /// If the call fails, or a token cannot be chosen.
    pub fn step(
        &mut self,
        on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<(usize, Generated)>, GenerateError> {
        let ended = self.rows.step_all(&mut self.running, on_token);
        if ended.is_err() {
            // Its state is lost, and nobody waits for what a free row has seen.
            let free = (0..self.running.len()).filter(|&row| self.running[row].is_none());
            free.for_each(|row| self.rows.truncate(row, 0));
        }
        ended
    }

    /// Continues `prompts`: as many at once as there are rows, the others as rows become free. `on_token` gets each
    /// new token with the number of its prompt, and may break that text off.
    ///
    /// # Errors
    /// If a prompt is empty or does not fit, a setting is out of range, or a call fails.
    pub fn generate(
        &mut self,
        prompts: &[&[u32]],
        options: &TokenOptions,
        mut on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Generated>, GenerateError> {
        for prompt in prompts {
            Generation::new(prompt, options)?;
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
