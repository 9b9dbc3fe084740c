//! Converts the tokens of one answer to text, piece by piece, and defines the options of an answer.

use crate::stop::{StopMatch, StopStrings};
use crate::text::Stream;
use crate::{
    Breakers, Constrainer, Constraint, ConstraintProcesses, Finish, GenerateError, Generated, Sampler,
    Sampling, TokenOptions, Tokenizer,
};

/// Options for continuing a text, in which stop strings and constraints are strings.
/// [`TokenOptions`] contains the options of `GenerateOptions` with token ids instead of strings.
///
/// ```
/// use tracewright_generate::{GenerateOptions, Sampling};
///
/// let sampling = Sampling { temperature: 0.7, top_p: 0.9, seed: 1, ..Sampling::default() };
/// let options = GenerateOptions { max_tokens: 64, sampling, stop: vec!["\n".into()], ..GenerateOptions::default() };
/// assert_eq!(options.logprobs, None);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// The largest number of tokens that the model generates.
    pub max_tokens: usize,
    /// The most tokens of prompt and answer, or only [`max_tokens`](Self::max_tokens) and the context.
    pub max_length: Option<usize>,
    /// The settings of the sampler. [`dry_breakers`](Self::dry_breakers) replaces the breakers in them.
    pub sampling: Sampling,
    /// Texts across which the DRY penalty sees no repetition. `None` selects [`Breakers::USUAL`].
    pub dry_breakers: Option<Vec<String>>,
    /// Stop strings, which end the text. The text does not include the stop string.
    pub stop: Vec<String>,
    /// Tokens that end the text in addition to the model's stop tokens.
    pub stop_tokens: Vec<u32>,
    /// Whether to continue after the model's stop tokens.
    pub ignore_eos: bool,
    /// The schema or grammar that the text must follow.
    pub follow: Option<Follow>,
    /// Whether JSON that [`follow`](Self::follow) requires may contain whitespace outside strings.
    pub whitespace_flexible: bool,
    /// The number of most likely tokens with probabilities in the result, or `None` for no probabilities.
    pub logprobs: Option<usize>,
    /// Whether to keep the logits from which each token was chosen, as f32 [tokens, vocabulary].
    pub keep_logits: bool,
}

/// A schema or a grammar that a text must follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Follow {
    /// The text must be JSON that is valid under the given JSON Schema.
    JsonSchema(String),
    /// The text must follow a grammar in llguidance's variant of Lark's notation.
    Grammar(String),
}

impl Default for GenerateOptions {
    fn default() -> Self {
        let TokenOptions { max_tokens, max_length, sampling, keep_logits, logprobs, .. } =
            TokenOptions::default();
        Self {
            max_tokens,
            max_length,
            sampling,
            dry_breakers: None,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            ignore_eos: false,
            follow: None,
            whitespace_flexible: false,
            logprobs,
            keep_logits,
        }
    }
}

impl GenerateOptions {
    /// Converts the options to [`TokenOptions`] for a model with the stop tokens `stop_tokens`.
    pub fn in_tokens(
        &self,
        tokenizer: Option<&Tokenizer>,
        stop_tokens: &[u32],
    ) -> Result<TokenOptions, GenerateError> {
        self.in_tokens_within(tokenizer, stop_tokens, None)
    }

    /// Like [`in_tokens`](Self::in_tokens), but `processes` follow schemas, or this process with `None`.
    pub fn in_tokens_within(
        &self,
        tokenizer: Option<&Tokenizer>,
        stop_tokens: &[u32],
        processes: Option<&ConstraintProcesses>,
    ) -> Result<TokenOptions, GenerateError> {
        let needs = |option: &'static str| tokenizer.ok_or(GenerateError::NeedsText { option });
        let mut sampling = self.sampling.clone();
        Sampler::new(&sampling)?;
        if sampling.dry.multiplier != 0.0 {
            match &self.dry_breakers {
                Some(texts) if texts.is_empty() => sampling.dry.breakers = Breakers::default(),
                Some(texts) => sampling.dry.breakers = Breakers::new(needs("dry_breakers")?, texts)?,
                None => {
                    if let Some(tokenizer) = tokenizer {
                        sampling.dry.breakers = Breakers::new(tokenizer, &Breakers::USUAL)?;
                    }
                }
            }
        }
        if !self.stop.is_empty() {
            needs("stop")?;
        }
        let mut stop_tokens = if self.ignore_eos { Vec::new() } else { stop_tokens.to_vec() };
        let follow = |follow: &Follow| -> Result<Constraint, GenerateError> {
            let tokenizer = needs("follow")?;
            let constrainer = match processes {
                Some(processes) => Constrainer::within(processes, &stop_tokens),
                None => Constrainer::new(tokenizer, &stop_tokens)?,
            };
            let constrainer = constrainer.whitespace_flexible(self.whitespace_flexible);
            match follow {
                Follow::JsonSchema(schema) => constrainer.json_schema(schema),
                Follow::Grammar(grammar) => constrainer.grammar(grammar),
            }
        };
        let constraint = self.follow.as_ref().map(follow).transpose()?;
        stop_tokens.extend(&self.stop_tokens);
        Ok(TokenOptions {
            max_tokens: self.max_tokens,
            max_length: self.max_length,
            sampling,
            stop_tokens,
            keep_logits: self.keep_logits,
            logprobs: self.logprobs,
            constraint,
        })
    }
}

/// Converts tokens to text, which it returns as soon as no later token can change it, and finds stop strings.
/// Without a tokenizer, the text of a token is its id and a space.
#[derive(Clone, Debug)]
pub struct Reply<'a> {
    detokenizer: Option<Stream<'a>>,
    stops: StopStrings,
    stopped: bool,
    text: String,
}

impl<'a> Reply<'a> {
    /// Creates an answer that contains no tokens yet. The answer ends before the first string of `stop`.
    pub fn new(tokenizer: Option<&'a Tokenizer>, stop: &[String]) -> Self {
        Self {
            detokenizer: tokenizer.map(Tokenizer::stream),
            stops: StopStrings::new(stop),
            stopped: false,
            text: String::new(),
        }
    }

    /// Includes the names of the given special tokens in the text of the answer.
    #[must_use]
    pub fn showing(mut self, special_tokens: &[String]) -> Self {
        self.detokenizer = self.detokenizer.map(|stream| stream.showing(special_tokens));
        self
    }

    /// Takes the next token, and returns the new text that no later token can change, which can be empty.
    pub fn push(&mut self, token: u32) -> Result<String, GenerateError> {
        let piece = match &mut self.detokenizer {
            Some(detokenizer) => detokenizer.push(token)?,
            None => format!("{token} "),
        };
        Ok(self.take(&piece, false))
    }

    /// Ends the answer, and returns the rest, held back for incomplete characters or stop strings.
    pub fn finish(&mut self) -> Result<String, GenerateError> {
        self.end(|rest| rest)
    }

    /// Like [`finish`](Self::finish), for a text that ends at a limit: without the bytes of half a character.
    pub fn finish_cut(&mut self) -> Result<String, GenerateError> {
        self.end(|rest| rest.trim_end_matches(char::REPLACEMENT_CHARACTER))
    }

    fn end(&mut self, kept: impl Fn(&str) -> &str) -> Result<String, GenerateError> {
        if self.stopped {
            return Ok(String::new());
        }
        let rest = self.detokenizer.take().map(Stream::finish).transpose()?.unwrap_or_default();
        Ok(self.take(kept(&rest), true))
    }

    /// Whether a stop string ended the text.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Returns all text of the answer that earlier calls have returned.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Sets the reason why the text ended to [`Finish::Stop`] if a stop string ended the text. The generation
    /// itself reports the reason [`Finish::Cancelled`] for a text that ends at a stop string.
    pub fn finished(&self, generated: Generated) -> Generated {
        if self.stopped { Generated { finish: Finish::Stop, ..generated } } else { generated }
    }

    fn take(&mut self, piece: &str, is_last: bool) -> String {
        let piece = match self.stops.push(piece) {
            StopMatch::Text(text) if is_last => text + &self.stops.finish(),
            StopMatch::Text(text) => text,
            StopMatch::Stop(text) => {
                self.stopped = true;
                text
            }
        };
        self.text.push_str(&piece);
        piece
    }
}
