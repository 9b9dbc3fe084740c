//! A conversation with a network: tokens go in, the next token comes out, keys and values stay on the device.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use runtime::{Buffer, Function};

use crate::network::{Positions, floats, ids};
use crate::{Error, Network, Sampler, Sampling};

/// A sequence of tokens that a network has seen, and the keys and values it keeps of them.
pub struct Session<'a> {
    network: &'a Network,
    /// The keys and values of `tokens`. Empty before the first call and after a failed one, which consumed them.
    state: Vec<Buffer>,
    tokens: Vec<u32>,
}

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

/// What [`Session::generate`] did.
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

/// Whether `tokens` may follow `seen` others: they fit into the context, and each is one of the vocabulary.
///
/// # Errors
/// If not.
pub fn check_tokens(tokens: &[u32], seen: usize, context: usize, vocabulary: usize) -> Result<(), Error> {
    let length = seen + tokens.len();
    if length > context {
        return Err(Error::TooLong { length, context });
    }
    match tokens.iter().position(|&token| token as usize >= vocabulary) {
        Some(index) => Err(Error::Token { index, token: tokens[index], vocabulary }),
        None => Ok(()),
    }
}

/// What the caller wants to know after a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    Nothing,
    Token,
    Logits,
}

/// What a call answers.
enum Answer {
    Nothing,
    Token(u32),
    Logits(Vec<f32>),
}

impl<'a> Session<'a> {
    /// A session that has seen nothing.
    pub fn new(network: &'a Network) -> Self {
        Self { network, state: Vec::new(), tokens: Vec::new() }
    }

    /// The tokens seen so far: those whose keys and values are kept.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Forgets everything after the first `length` tokens.
    pub fn truncate(&mut self, length: usize) {
        // Slots behind the last token are never looked at before they are written again. A ring's may hold what
        // stood where earlier positions are needed now: those are computed again.
        if length < self.tokens.len() && self.network.forgets {
            self.state.clear();
        }
        self.tokens.truncate(length);
    }

    /// The logits after each of `tokens`, which follow what the session has seen: one row over the vocabulary
    /// each.
    ///
    /// # Errors
    /// If the module has no `score`, the tokens do not fit, or a call fails.
    pub fn score(&mut self, tokens: &[u32]) -> Result<Vec<Vec<f32>>, Error> {
        self.check(tokens)?;
        let score = self
            .network
            .score
            .clone()
            .ok_or(Error::EntryPoint { name: "score", why: "is missing".into() })?;
        let mut rows = Vec::with_capacity(tokens.len());
        let mut rest = tokens;
        while !rest.is_empty() {
            let seen = self.tokens.len();
            let Some((chunk, start, new)) = self.next_chunk(rest) else {
                rows.push(self.feed(&rest[..1])?);
                rest = &rest[1..];
                continue;
            };
            let values = self.call(&score, &chunk, start, seen + new - start, 1)?;
            let logits = floats(&values[0])?;
            let row =
                |i: usize| logits[i * self.network.vocabulary()..][..self.network.vocabulary()].to_vec();
            rows.extend((seen - start..seen + new - start).map(row));
            self.tokens.extend_from_slice(&rest[..new]);
            rest = &rest[new..];
        }
        Ok(rows)
    }

    /// Shows the session tokens and returns the logits after the last.
    ///
    /// # Errors
    /// If there are none, they do not fit, or a call fails.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        self.check(tokens)?;
        match self.advance(tokens, Want::Logits)? {
            Answer::Logits(logits) => Ok(logits),
            _ => Err(Error::EmptyPrompt),
        }
    }

    /// Shows the session `prompt` and continues it. `on_token` gets each new token as soon as it is chosen and may
    /// break off. The last token is chosen, but not shown to the network yet.
    ///
    /// # Errors
    /// If the prompt is empty or does not fit, a setting is out of range, or a call fails.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        options: &GenerateOptions,
        mut on_token: impl FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Generated, Error> {
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        self.check(prompt)?;
        let mut sampler = Sampler::new(&options.sampling)?;
        // Without sampling, four bytes tell the token: the argmax is part of the module.
        let want = match options.sampling.temperature == 0.0 && !options.keep_logits {
            true => Want::Token,
            false => Want::Logits,
        };
        let start = Instant::now();
        let mut answer = self.advance(prompt, want)?;
        let mut generated = Generated {
            tokens: Vec::new(),
            finish: Finish::Length,
            logits: Vec::new(),
            prefill_tokens: prompt.len(),
            prefill: start.elapsed(),
            decode_steps: 0,
            decode: Duration::ZERO,
        };
        while generated.tokens.len() < options.max_tokens {
            let token = match answer {
                Answer::Token(token) => token,
                Answer::Logits(logits) => {
                    let token = sampler.choose(&logits)?;
                    if options.keep_logits {
                        generated.logits.push(logits);
                    }
                    token
                }
                Answer::Nothing => return Err(Error::EmptyPrompt),
            };
            if options.stop_tokens.contains(&token) {
                generated.finish = Finish::Stop;
                break;
            }
            generated.tokens.push(token);
            if on_token(token).is_break() {
                generated.finish = Finish::Cancelled;
                break;
            }
            if generated.tokens.len() == options.max_tokens {
                break;
            }
            if self.tokens.len() == self.network.context() {
                generated.finish = Finish::Context;
                break;
            }
            let start = Instant::now();
            answer = self.advance(&[token], want)?;
            generated.decode += start.elapsed();
            generated.decode_steps += 1;
        }
        Ok(generated)
    }

    fn check(&self, tokens: &[u32]) -> Result<(), Error> {
        if self.network.batch != 1 {
            return Err(Error::Batch { found: 1, batch: self.network.batch });
        }
        check_tokens(tokens, self.tokens.len(), self.network.context(), self.network.vocabulary())
    }

    /// Shows the session tokens that were checked.
    fn advance(&mut self, tokens: &[u32], want: Want) -> Result<Answer, Error> {
        let mut answer = Answer::Nothing;
        let mut rest = tokens;
        while !rest.is_empty() {
            let chunk = if rest.len() > 1 { self.next_chunk(rest) } else { None };
            let (function, chunk, start, new) = match chunk {
                Some((chunk, start, new)) => (self.network.prefill.clone(), chunk, start, new),
                None => (self.network.decode.clone(), vec![rest[0]], self.tokens.len(), 1),
            };
            let count = self.tokens.len() + new - start;
            let values = self.call(&function, &chunk, start, count, 2)?;
            self.tokens.extend_from_slice(&rest[..new]);
            rest = &rest[new..];
            if rest.is_empty() {
                answer = match want {
                    Want::Nothing => Answer::Nothing,
                    Want::Logits => Answer::Logits(floats(&values[0])?),
                    Want::Token => Answer::Token(ids(&values[1])?[0]),
                };
            }
        }
        Ok(answer)
    }

    /// The next chunk of `rest`, padded to the length that `prefill` takes; where it starts; how many of its tokens
    /// are new. At the end of the context the chunk is moved back over tokens seen before: a padded chunk would not
    /// fit, and its writes would be clamped onto earlier slots. Where a layer forgets what those tokens saw, there
    /// is no chunk any more: the rest goes in token by token.
    fn next_chunk(&self, rest: &[u32]) -> Option<(Vec<u32>, usize, usize)> {
        let (seen, chunk) = (self.tokens.len(), self.network.chunk);
        let start = seen.min(self.network.context() - chunk);
        if start < seen && self.network.forgets {
            return None;
        }
        let again = &self.tokens[start..];
        let new = rest.len().min(chunk - again.len());
        let mut tokens = [again, &rest[..new]].concat();
        tokens.resize(chunk, 0);
        Some((tokens, start, new))
    }

    /// Calls an entry point: the state moves in and out. Returns the `results` before the state.
    fn call(
        &mut self,
        function: &Function,
        tokens: &[u32],
        start: usize,
        count: usize,
        results: usize,
    ) -> Result<Vec<Buffer>, Error> {
        self.restore()?;
        let positions = Positions { start, count, pad: &[] };
        self.network.call(function, tokens, positions, &mut self.state, results)
    }

    /// Makes the state if there is none: zeros, and after a failed call the tokens seen are shown again.
    fn restore(&mut self) -> Result<(), Error> {
        if !self.state.is_empty() {
            return Ok(());
        }
        self.state = self.network.empty_state()?;
        let seen = std::mem::take(&mut self.tokens);
        let shown = self.advance(&seen, Want::Nothing);
        if shown.is_err() {
            (self.state, self.tokens) = (Vec::new(), seen);
        }
        shown.map(drop)
    }
}
