//! How one text is continued: what chooses its tokens, and when it ends.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::{GenerateError, Sampler, Sampling};

/// How a text is continued.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// At most this many new tokens.
    pub max_tokens: usize,
    /// How a token is chosen.
    pub sampling: Sampling,
    /// Tokens that end the text; they are not part of it.
    pub stop_tokens: Vec<u32>,
    /// Whether the logits that chose each token are kept.
    pub keep_logits: bool,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self { max_tokens: 128, sampling: Sampling::default(), stop_tokens: Vec::new(), keep_logits: false }
    }
}

/// Why a text ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token was chosen.
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
    /// Tokens of the prompt that were computed.
    pub prefill_tokens: usize,
    /// The time until the first token could be chosen.
    pub prefill: Duration,
    /// Calls of `decode`.
    pub decode_steps: usize,
    /// Their time.
    pub decode: Duration,
}

impl Generated {
    /// Prompt tokens per second.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prefill_tokens, self.prefill)
    }

    /// New tokens per second, the first one not counted: the prompt paid for it.
    pub fn decode_rate(&self) -> f64 {
        rate(self.decode_steps, self.decode)
    }
}

fn rate(count: usize, time: Duration) -> f64 {
    if count == 0 { 0.0 } else { count as f64 / time.as_secs_f64().max(1e-9) }
}

/// What the caller wants to know after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Want {
    Nothing,
    Token,
    Logits,
    /// The logits after each token.
    All,
}

/// What a call answers for one row.
pub(crate) enum Answer {
    /// The row has tokens that the network has not seen yet, or had none.
    Nothing,
    /// The token that the logits favour.
    Token(u32),
    /// The logits after the last token; of [`Want::All`], after each that the call took.
    Logits(Vec<Vec<f32>>),
}

/// A text that is being continued.
pub(crate) struct Generation {
    options: GenerateOptions,
    sampler: Sampler,
    generated: Generated,
    /// Whether the prompt was answered.
    begun: bool,
}

impl Generation {
    /// One that follows a prompt.
    ///
    /// # Errors
    /// If there is no prompt, or a setting is out of range.
    pub fn new(prompt: &[u32], options: &GenerateOptions) -> Result<Self, GenerateError> {
        if prompt.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        let generated = Generated {
            tokens: Vec::new(),
            finish: Finish::Length,
            logits: Vec::new(),
            prefill_tokens: prompt.len(),
            prefill: Duration::ZERO,
            decode_steps: 0,
            decode: Duration::ZERO,
        };
        let sampler = Sampler::new(&options.sampling)?;
        Ok(Self { options: options.clone(), sampler, generated, begun: false })
    }

    /// Without sampling, eight bytes tell the token and its logit: the argmax is part of the module.
    pub fn want(&self) -> Want {
        match self.options.sampling.temperature == 0.0 && !self.options.keep_logits {
            true => Want::Token,
            false => Want::Logits,
        }
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

    /// Takes what the network answered after `seen` tokens, and returns the token to show it next; `None` at the end.
    ///
    /// # Errors
    /// If no token can be chosen.
    pub fn next(
        &mut self,
        answer: Answer,
        is_full: bool,
        on_token: impl FnOnce(u32) -> ControlFlow<()>,
    ) -> Result<Option<u32>, GenerateError> {
        self.begun = true;
        if self.generated.tokens.len() == self.options.max_tokens {
            return Ok(None);
        }
        let token = match answer {
            Answer::Token(token) => {
                self.sampler.pass();
                token
            }
            Answer::Logits(mut rows) => {
                let logits = rows.pop().unwrap_or_default();
                let token = self.sampler.choose(&logits)?;
                if self.options.keep_logits {
                    self.generated.logits.push(logits);
                }
                token
            }
            Answer::Nothing => return Err(GenerateError::EmptyPrompt),
        };
        let finish = if self.options.stop_tokens.contains(&token) {
            Finish::Stop
        } else {
            self.generated.tokens.push(token);
            if on_token(token).is_break() {
                Finish::Cancelled
            } else if self.generated.tokens.len() == self.options.max_tokens {
                Finish::Length
            } else if is_full {
                Finish::Context
            } else {
                return Ok(Some(token));
            }
        };
        self.generated.finish = finish;
        Ok(None)
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
