//! Continues one sequence: [`TokenOptions`] contains the options, and [`Generated`] the new tokens.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Duration;

use crate::constraint::Guide;
use crate::{Constraint, GenerateError, Sampler, Sampling, SpeechScores, TextBounds, TokenLogprobs};

/// Options for continuing a sequence, with token ids. [`GenerateOptions`](crate::GenerateOptions)
/// contains the options of `TokenOptions` with text instead of token ids.
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
    /// The largest number of tokens that the model generates.
    pub max_tokens: usize,
    /// The most tokens of prompt and answer, or only [`max_tokens`](Self::max_tokens) and the context.
    pub max_length: Option<usize>,
    /// The settings of the sampler.
    pub sampling: Sampling,
    /// The generation ends when the model chooses one of these. The result does not include the stop token.
    pub stop_tokens: Vec<u32>,
    /// Whether to keep the logits from which each token was chosen.
    pub keep_logits: bool,
    /// The number of most likely tokens with probabilities in the result, or `None` for no probabilities.
    pub logprobs: Option<usize>,
    /// A constraint on the generated text, which ends when no further token is allowed.
    pub constraint: Option<Constraint>,
}

impl Default for TokenOptions {
    fn default() -> Self {
        Self {
            max_tokens: 128,
            max_length: None,
            sampling: Sampling::default(),
            stop_tokens: Vec::new(),
            keep_logits: false,
            logprobs: None,
            constraint: None,
        }
    }
}

/// The reason why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model chose a stop token, or the constraint allows no further token.
    Stop,
    /// The sequence has the requested number of tokens.
    Length,
    /// The context is full, so there is no room for another token.
    Context,
    /// The callback returned `Break`, or the caller cancelled the generation.
    Cancelled,
}

/// The result of [`Session::generate`](crate::Session::generate).
#[derive(Clone, Debug)]
pub struct Generated {
    /// The new tokens of the sequence, without the stop token.
    pub tokens: Vec<u32>,
    /// The reason why the sequence ended.
    pub finish: Finish,
    /// For each new token, the logits over the vocabulary, if [`TokenOptions::keep_logits`] is set.
    pub logits: Vec<Vec<f32>>,
    /// For each new token, the most likely tokens, if [`TokenOptions::logprobs`] is set.
    pub logprobs: Vec<TokenLogprobs>,
    /// The number of processed prompt tokens, without those whose state (such as the KV cache) was reused.
    pub prefill_tokens: usize,
    /// The time from the start of the generation until the network had processed the prompt.
    pub prefill: Duration,
    /// The network calls after the prompt. A call can process several forced or drafted tokens.
    pub decode_steps: usize,
    /// The total time of all network calls after the network had processed the prompt.
    pub decode: Duration,
    /// The number of draft tokens that the drafter proposed.
    pub drafted: usize,
    /// The number of draft tokens that the network accepted.
    pub accepted: usize,
    /// The scores of the tokens, if [`LogitRules::speech`](crate::LogitRules::speech) has rules.
    pub scores: SpeechScores,
}

/// The index of a sequence that ended, and its tokens, or the error that ended it.
pub type EndedSequence = (usize, Result<Generated, GenerateError>);

impl Generated {
    /// Returns the processed prompt tokens per second, or 0 without any.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prefill_tokens, self.prefill)
    }

    /// Returns the new tokens per second, without the first, which the calls for the prompt compute.
    pub fn decode_rate(&self) -> f64 {
        rate(self.tokens.len().saturating_sub(1), self.decode)
    }
}

fn rate(count: usize, time: Duration) -> f64 {
    if count == 0 { 0.0 } else { count as f64 / time.as_secs_f64().max(1e-9) }
}

/// The outputs that a sequence needs from the next network call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StepRequest {
    Nothing,
    Token,
    Logits,
    /// The network call returns the logits after each token of the call.
    All,
    /// The network call returns the most likely next token after each token of the call.
    Each,
}

/// The output of a network call for one sequence.
pub(crate) enum StepOutput {
    /// No output: tokens of the sequence are left to process, or it has no tokens.
    Nothing,
    /// The most likely token after the last token.
    Token(u32),
    /// The most likely next token after each token of the call.
    Tokens(Vec<u32>),
    /// The logits after the last token, or with [`StepRequest::All`] after each token of the call.
    Logits(Vec<Vec<f32>>),
    /// The first output follows the token before a draft, each further one a token of the draft.
    Verified(Vec<StepOutput>),
}

/// The generation of one sequence.
pub(crate) struct Generation {
    options: TokenOptions,
    sampler: Sampler,
    guide: Option<Guide>,
    generated: Generated,
    /// The tokens that the grammar requires next, processed one by one because the caller needs logits.
    forced: VecDeque<u32>,
    /// Whether the network has processed the whole prompt.
    has_prompt: bool,
    /// The output of the network, while the constraint computes the allowed tokens.
    waiting: Option<StepOutput>,
    /// The chosen token, while the constraint computes the required tokens after it.
    chosen: Option<u32>,
}

impl Generation {
    /// Starts to continue a prompt.
    pub fn new(prompt: &[u32], options: &TokenOptions) -> Result<Self, GenerateError> {
        let sampler = Self::check(prompt, options)?;
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
            scores: SpeechScores::default(),
        };
        let guide = options.constraint.as_ref().map(Constraint::begin);
        let forced = VecDeque::new();
        let (has_prompt, waiting, chosen) = (false, None, None);
        Ok(Self { options: options.clone(), sampler, guide, generated, forced, has_prompt, waiting, chosen })
    }

    /// Returns the errors of [`new`](Self::new), but starts nothing.
    pub fn check(prompt: &[u32], options: &TokenOptions) -> Result<Sampler, GenerateError> {
        if prompt.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        if let Some(length) = options.max_length.filter(|&length| length <= prompt.len()) {
            let expected = "more than the number of tokens of the prompt";
            return Err(GenerateError::Setting { name: "max_length", found: length.to_string(), expected });
        }
        Sampler::new(&options.sampling)
    }

    /// The outputs that the next call must return. Without sampling, the module computes the argmax, so the
    /// call copies eight bytes: the token and its logit.
    pub fn want(&self) -> StepRequest {
        let reads_logits = self.keeps_logits() || self.guide.is_some();
        if self.options.sampling.takes_the_likeliest() && !reads_logits {
            StepRequest::Token
        } else {
            StepRequest::Logits
        }
    }

    /// Whether the caller needs the logits or the log probabilities of each token.
    fn keeps_logits(&self) -> bool {
        self.options.keep_logits || self.options.logprobs.is_some()
    }

    /// Adds the duration of a network call to the statistics of the sequence.
    pub fn spend(&mut self, time: Duration) {
        if self.has_prompt {
            self.generated.decode += time;
            self.generated.decode_steps += 1;
        } else {
            self.generated.prefill += time
        }
    }

    /// Whether the network has processed the whole prompt.
    pub fn has_prompt(&self) -> bool {
        self.has_prompt
    }

    /// The most draft tokens that fit. Verifying chooses one token in addition to the accepted ones. While
    /// the network processes the prompt, there is no room.
    pub fn room_for_draft(&self) -> usize {
        if self.has_prompt {
            self.options.max_tokens.saturating_sub(self.generated.tokens.len() + 1)
        } else {
            0
        }
    }

    /// Adds the number of draft tokens and the number of accepted draft tokens to the statistics.
    pub fn count_draft(&mut self, drafted: usize, accepted: usize) {
        self.generated.drafted += drafted;
        self.generated.accepted += accepted;
    }

    /// Chooses the next token from the output after `before`. Returns it and the tokens that the grammar then
    /// requires, or an empty list at the end. If the constraint is not ready after `patience`, the result is
    /// `None`, and the next call continues with [`StepOutput::Nothing`]. Without `patience`, it waits.
    pub fn next(
        &mut self,
        answer: StepOutput,
        (before, context): (&[u32], usize),
        patience: Option<Duration>,
        mut on_token: impl FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Option<Vec<u32>>, GenerateError> {
        if !self.has_prompt {
            self.end_prompt(before.len());
        }
        if self.generated.tokens.len() == self.options.max_tokens {
            return Ok(Some(Vec::new()));
        }
        let token = match self.chosen.take() {
            Some(token) => token,
            None => {
                let answer = self.waiting.take().unwrap_or(answer);
                if self.forced.is_empty() && !self.is_ready(patience) {
                    self.waiting = Some(answer);
                    return Ok(None);
                }
                match self.answered(answer, before)? {
                    Some(token) => token,
                    None => {
                        self.generated.finish = Finish::Stop;
                        return Ok(Some(Vec::new()));
                    }
                }
            }
        };
        let mut new = vec![token];
        if self.forced.is_empty() && !self.options.stop_tokens.contains(&token) {
            if !self.is_ready(patience) {
                self.chosen = Some(token);
                return Ok(None);
            }
            new.extend(self.force()?);
        }
        let last = new.len() - 1;
        for (i, &token) in new.iter().enumerate() {
            let is_full = before.len() + i == context;
            if let Some(finish) = self.append(token, i == last, is_full, &mut on_token) {
                self.generated.finish = finish;
                return Ok(Some(Vec::new()));
            }
        }
        Ok(Some(new))
    }

    /// Whether the sequence waits for its constraint, and needs no call of the network.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some() || self.chosen.is_some()
    }

    fn is_ready(&mut self, patience: Option<Duration>) -> bool {
        match (&mut self.guide, patience) {
            (Some(guide), Some(patience)) => guide.is_ready(patience),
            _ => true,
        }
    }

    /// Notes that the network has processed the prompt, which has `prompt` tokens.
    fn end_prompt(&mut self, prompt: usize) {
        self.has_prompt = true;
        let room = self.options.max_length.map_or(usize::MAX, |length| length.saturating_sub(prompt));
        self.options.max_tokens = self.options.max_tokens.min(room);
        let end = prompt.checked_add(self.options.max_tokens);
        self.sampler.begin(TextBounds { prompt, end, stop_tokens: self.options.stop_tokens.clone() });
    }

    /// Chooses the next token from an output, or `None` if the sequence is complete.
    fn answered(&mut self, answer: StepOutput, before: &[u32]) -> Result<Option<u32>, GenerateError> {
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
            None => match self.choose(before, &logits)? {
                Some(token) => token,
                None => return Ok(None),
            },
        };
        if let Some(count) = self.options.logprobs.filter(|_| !self.options.stop_tokens.contains(&token)) {
            self.generated.logprobs.push(TokenLogprobs::of(&logits, token, count));
        }
        if self.options.keep_logits {
            self.generated.logits.push(logits);
        }
        Ok(Some(token))
    }

    /// The tokens that the grammar requires next; empty if the caller needs the logits of each token.
    fn force(&mut self) -> Result<Vec<u32>, GenerateError> {
        let Some(guide) = &mut self.guide else { return Ok(Vec::new()) };
        let forced = guide.forced()?;
        Ok(if self.keeps_logits() {
            self.forced.extend(forced);
            Vec::new()
        } else {
            forced
        })
    }

    /// Adds a token to the sequence. If the sequence ends, the function returns the reason.
    fn append(
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

    /// Chooses the next token from the given logits. The result is `None` if the sequence is complete.
    fn choose(&mut self, before: &[u32], logits: &[f32]) -> Result<Option<u32>, GenerateError> {
        let Some(guide) = &mut self.guide else { return self.sampler.choose(before, logits).map(Some) };
        let Some(allowed) = guide.allowed()? else { return Ok(None) };
        let token = self.sampler.choose_among(before, logits, |token| allowed.has(token))?;
        if !self.options.stop_tokens.contains(&token) {
            guide.advance(token, self.options.max_tokens - self.generated.tokens.len() - 1)?;
        }
        Ok(Some(token))
    }

    pub fn logprobs(&self) -> &[TokenLogprobs] {
        &self.generated.logprobs
    }

    /// Returns the tokens of the sequence so far, and the reason why the sequence ended.
    pub fn into_generated(self) -> Generated {
        Generated { scores: self.sampler.scores(), ..self.generated }
    }

    /// Returns the tokens so far, with [`Finish::Cancelled`] as the reason of the end.
    pub fn cancelled(self) -> Generated {
        Generated { finish: Finish::Cancelled, ..self.into_generated() }
    }
}
