//! How one text is continued: what chooses its tokens, and when it ends.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Duration;

use crate::constraint::Guide;
use crate::{Constraint, GenerateError, Sampler, Sampling, TokenLogprobs};

/// How a text is continued, in terms of tokens. [`GenerateOptions`](crate::GenerateOptions) are the same in terms of text.
///
/// ```
/// use tracewright_generate::{TokenOptions, Sampling};
///
/// let sampling = Sampling { temperature: 0.7, top_p: 0.9, seed: 1, ..Sampling::default() };
/// let options = TokenOptions { max_tokens: 64, sampling, ..TokenOptions::default() };
/// assert_eq!(options.logprobs, None);
/// ```
#[derive(Clone, Debug)]
pub struct TokenOptions {
    /// At most this many new tokens.
    pub max_tokens: usize,
    /// How a token is chosen.
    pub sampling: Sampling,
    /// Tokens that end the text; they are not part of it.
    pub stop_tokens: Vec<u32>,
    /// Whether the logits that chose each token are kept.
    pub keep_logits: bool,
    /// Of how many tokens the probabilities are kept, the most likely ones at each place.
    pub logprobs: Option<usize>,
    /// What the text must follow. It ends where nothing can follow.
    pub constraint: Option<Constraint>,
}

impl Default for TokenOptions {
    fn default() -> Self {
        Self {
            max_tokens: 128,
            sampling: Sampling::default(),
            stop_tokens: Vec::new(),
            keep_logits: false,
            logprobs: None,
            constraint: None,
        }
    }
}

/// Why a text ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token was chosen, or nothing can follow by what the text must follow.
    Stop,
    /// There are as many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
    /// The callback broke off.
    Cancelled,
}

/// What [`Session::generate`](crate::Session::generate) did.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The new tokens.
    pub tokens: Vec<u32>,
    /// Why there are no more.
    pub finish: Finish,
    /// If kept: for each new token the logits over the vocabulary that chose it.
    pub logits: Vec<Vec<f32>>,
    /// If kept: for each new token what was likely.
    pub logprobs: Vec<TokenLogprobs>,
    /// Tokens of the prompt that were computed.
    pub prefill_tokens: usize,
    /// The time until the first token could be chosen.
    pub prefill: Duration,
    /// Calls of the network behind the prompt. There are fewer than tokens where a call takes several tokens that a grammar
    /// forces.
    pub decode_steps: usize,
    /// The time of these calls.
    pub decode: Duration,
    /// Tokens that were drafted.
    pub drafted: usize,
    /// Drafted tokens that the network would have chosen too.
    pub accepted: usize,
}

impl Generated {
    /// Prompt tokens per second.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prefill_tokens, self.prefill)
    }

    /// New tokens per second, the first one not counted: the prompt paid for it.
    pub fn decode_rate(&self) -> f64 {
        rate(self.tokens.len().saturating_sub(1), self.decode)
    }
}

fn rate(count: usize, time: Duration) -> f64 {
    if count == 0 { 0.0 } else { count as f64 / time.as_secs_f64().max(1e-9) }
}

/// What the caller wants to know after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StepRequest {
    Nothing,
    Token,
    Logits,
    /// The logits after each token.
    All,
    /// The token that is favoured after each.
    Each,
}

/// What a call answers for one row.
pub(crate) enum StepOutput {
    /// The row has tokens that the network has not seen yet, or had none.
    Nothing,
    /// The token that the logits favour.
    Token(u32),
    /// The token that is favoured after each that the call took.
    Tokens(Vec<u32>),
    /// The logits after the last token; of [`StepRequest::All`], after each that the call took.
    Logits(Vec<Vec<f32>>),
    /// What the call answers after the last token in front of a draft, and after each of the draft.
    Verified(Vec<StepOutput>),
}

/// A text that is being continued.
pub(crate) struct Generation {
    options: TokenOptions,
    sampler: Sampler,
    guide: Option<Guide>,
    generated: Generated,
    /// Tokens that the grammar forces and that wait for their logits, which the caller wants.
    forced: VecDeque<u32>,
    /// Whether the prompt was answered.
    begun: bool,
}

impl Generation {
    /// One that follows a prompt.
    ///
    /// # Errors
    /// If there is no prompt, or a setting is out of range.
    pub fn new(prompt: &[u32], options: &TokenOptions) -> Result<Self, GenerateError> {
        if prompt.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        let generated = Generated {
            tokens: Vec::new(),
            finish: Finish::Length,
            logits: Vec::new(),
            logprobs: Vec::new(),
            prefill_tokens: prompt.len(),
            prefill: Duration::ZERO,
            decode_steps: 0,
            decode: Duration::ZERO,
            drafted: 0,
            accepted: 0,
        };
        let sampler = Sampler::new(&options.sampling)?;
        let guide = options.constraint.as_ref().map(Constraint::begin);
        let forced = VecDeque::new();
        Ok(Self { options: options.clone(), sampler, guide, generated, forced, begun: false })
    }

    /// Without sampling, eight bytes tell the token and its logit: the argmax is part of the module.
    pub fn want(&self) -> StepRequest {
        let reads_logits = self.keeps_logits() || self.guide.is_some();
        match self.options.sampling.takes_the_likeliest() && !reads_logits {
            true => StepRequest::Token,
            false => StepRequest::Logits,
        }
    }

    /// Whether the caller wants the logits of each token, or what they tell.
    fn keeps_logits(&self) -> bool {
        self.options.keep_logits || self.options.logprobs.is_some()
    }

    /// Counts a call that took this long.
    pub fn spend(&mut self, time: Duration) {
        match self.begun {
            false => self.generated.prefill += time,
            true => {
                self.generated.decode += time;
                self.generated.decode_steps += 1;
            }
        }
    }

    /// How many tokens a draft may have: the call that verifies it chooses one more. None while the prompt is read.
    pub fn room_for_draft(&self) -> usize {
        match self.begun {
            true => self.options.max_tokens.saturating_sub(self.generated.tokens.len() + 1),
            false => 0,
        }
    }

    /// Counts a draft, and how much of it was right.
    pub fn count_draft(&mut self, drafted: usize, accepted: usize) {
        self.generated.drafted += drafted;
        self.generated.accepted += accepted;
    }

    /// Takes what the network answered after the tokens of `seen`, and returns the tokens to show it next: the one chosen, and
    /// those that the grammar forces behind it. None at the end.
    ///
    /// # Errors
    /// If no token can be chosen.
    pub fn next(
        &mut self,
        answer: StepOutput,
        seen: &[u32],
        context: usize,
        mut on_token: impl FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Vec<u32>, GenerateError> {
        self.begun = true;
        if self.generated.tokens.len() == self.options.max_tokens {
            return Ok(Vec::new());
        }
        let Some(token) = self.answered(answer, seen)? else {
            self.generated.finish = Finish::Stop;
            return Ok(Vec::new());
        };
        let mut new = vec![token];
        if self.forced.is_empty() && !self.options.stop_tokens.contains(&token) {
            new.extend(self.force()?);
        }
        let last = new.len() - 1;
        for (i, &token) in new.iter().enumerate() {
            let is_full = seen.len() + i == context;
            if let Some(finish) = self.take(token, i == last, is_full, &mut on_token) {
                self.generated.finish = finish;
                return Ok(Vec::new());
            }
        }
        Ok(new)
    }

    /// The token that follows by an answer; `None` where the text is complete.
    fn answered(&mut self, answer: StepOutput, seen: &[u32]) -> Result<Option<u32>, GenerateError> {
        let mut rows = match answer {
            StepOutput::Token(token) => {
                self.sampler.pass();
                return Ok(Some(token));
            }
            StepOutput::Logits(rows) => rows,
            StepOutput::Nothing | StepOutput::Tokens(_) | StepOutput::Verified(_) => {
                return Err(GenerateError::EmptyPrompt);
            }
        };
        let logits = rows.pop().unwrap_or_default();
        let token = match self.forced.pop_front() {
            Some(token) => token,
            None => match self.choose(seen, &logits)? {
                Some(token) => token,
                None => return Ok(None),
            },
        };
        if !self.options.stop_tokens.contains(&token) {
            if let Some(count) = self.options.logprobs {
                self.generated.logprobs.push(TokenLogprobs::of(&logits, token, count));
            }
        }
        if self.options.keep_logits {
            self.generated.logits.push(logits);
        }
        Ok(Some(token))
    }

    /// The tokens that the grammar forces behind those that were chosen. Where the caller wants logits they wait, and the network
    /// is asked after each.
    fn force(&mut self) -> Result<Vec<u32>, GenerateError> {
        let Some(guide) = &mut self.guide else { return Ok(Vec::new()) };
        let most = self.options.max_tokens - self.generated.tokens.len() - 1;
        let forced = guide.force(most)?;
        Ok(match self.keeps_logits() {
            true => {
                self.forced.extend(forced);
                Vec::new()
            }
            false => forced,
        })
    }

    /// Adds a token to the text, and returns why the text ends, if it does.
    fn take(
        &mut self,
        token: u32,
        is_last: bool,
        is_full: bool,
        on_token: &mut impl FnMut(u32) -> ControlFlow<()>,
    ) -> Option<Finish> {
        if self.options.stop_tokens.contains(&token) {
            return Some(Finish::Stop);
        }
        self.generated.tokens.push(token);
        let is_complete =
            is_last && self.forced.is_empty() && self.guide.as_ref().is_some_and(Guide::is_complete);
        if on_token(token).is_break() {
            Some(Finish::Cancelled)
        } else if is_complete {
            Some(Finish::Stop)
        } else if self.generated.tokens.len() == self.options.max_tokens {
            Some(Finish::Length)
        } else if is_full {
            Some(Finish::Context)
        } else {
            None
        }
    }

    /// The next token by these logits; `None` where the text is complete.
    fn choose(&mut self, seen: &[u32], logits: &[f32]) -> Result<Option<u32>, GenerateError> {
        let Some(guide) = &mut self.guide else { return self.sampler.choose(seen, logits).map(Some) };
        let Some(allowed) = guide.allowed()? else { return Ok(None) };
        let token = self.sampler.choose_among(seen, logits, |token| allowed.has(token))?;
        if !self.options.stop_tokens.contains(&token) {
            guide.take(token)?;
        }
        Ok(Some(token))
    }

    /// What was generated so far.
    pub fn into_generated(self) -> Generated {
        self.generated
    }

    /// The same, broken off.
    pub fn cancelled(self) -> Generated {
        Generated { finish: Finish::Cancelled, ..self.generated }
    }
}
