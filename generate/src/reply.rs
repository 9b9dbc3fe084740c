//! The text of one answer: what its user asks for, and the pieces in which it arrives.

use crate::stop::{StopMatch, StopStrings};
use crate::text::Stream;
use crate::{
    Breakers, Constrainer, Constraint, Finish, GenerateError, Generated, Sampler, Sampling, TokenOptions,
    Tokenizer,
};

/// How a text is continued, in terms of text. [`TokenOptions`] are the same in terms of tokens.
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
    /// At most this many new tokens.
    pub max_tokens: usize,
    /// How a token is chosen. Its DRY breakers are set from [`dry_breakers`](Self::dry_breakers).
    pub sampling: Sampling,
    /// Texts that no repetition found by DRY reaches across; `None` for [`Breakers::USUAL`].
    pub dry_breakers: Option<Vec<String>>,
    /// The text ends in front of the first of these.
    pub stop: Vec<String>,
    /// Whether the model's end-of-text tokens do not end the text.
    pub ignore_eos: bool,
    /// What the text must follow.
    pub follow: Option<Follow>,
    /// Whether JSON that [`follow`](Self::follow) describes may have whitespace between its tokens. Otherwise it is compact.
    pub whitespace_flexible: bool,
    /// How many of the most likely tokens are kept at each position, with their probabilities.
    pub logprobs: Option<usize>,
    /// Whether the logits that chose each token are kept: f32 [tokens, vocabulary].
    pub keep_logits: bool,
}

/// What a text must follow, token by token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Follow {
    /// JSON that is valid by this JSON Schema.
    JsonSchema(String),
    /// A grammar in Lark's notation, as llguidance reads it.
    Grammar(String),
}

impl Default for GenerateOptions {
    fn default() -> Self {
        let TokenOptions { max_tokens, sampling, keep_logits, logprobs, .. } = TokenOptions::default();
        Self {
            max_tokens,
            sampling,
            dry_breakers: None,
            stop: Vec::new(),
            ignore_eos: false,
            follow: None,
            whitespace_flexible: false,
            logprobs,
            keep_logits,
        }
    }
}

impl GenerateOptions {
    /// The same in terms of tokens, for a model that ends a text by `stop_tokens`.
    ///
    /// # Errors
    /// If a setting is out of range, a schema or a grammar cannot be followed, or text is asked for without a tokenizer.
    pub fn in_tokens(
        &self,
        tokenizer: Option<&Tokenizer>,
        stop_tokens: &[u32],
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
        let stop_tokens = if self.ignore_eos { Vec::new() } else { stop_tokens.to_vec() };
        let follow = |follow: &Follow| -> Result<Constraint, GenerateError> {
            let constrainer = Constrainer::new(needs("follow")?, &stop_tokens)?;
            let constrainer = constrainer.whitespace_flexible(self.whitespace_flexible);
            match follow {
                Follow::JsonSchema(schema) => constrainer.json_schema(schema),
                Follow::Grammar(grammar) => constrainer.grammar(grammar),
            }
        };
        let constraint = self.follow.as_ref().map(follow).transpose()?;
        Ok(TokenOptions {
            max_tokens: self.max_tokens,
            sampling,
            stop_tokens,
            keep_logits: self.keep_logits,
            logprobs: self.logprobs,
            constraint,
        })
    }
}

/// Makes text of the tokens of an answer: takes them one by one, gives out text that cannot change any more, and finds stop
/// strings.
///
/// Without a tokenizer the text of a token is its id and a space.
#[derive(Clone, Debug)]
pub struct Reply<'a> {
    detokenizer: Option<Stream<'a>>,
    stops: StopStrings,
    stopped: bool,
    text: String,
}

impl<'a> Reply<'a> {
    /// An empty answer that ends in front of the first of the texts in `stop`.
    pub fn new(tokenizer: Option<&'a Tokenizer>, stop: &[String]) -> Self {
        Self {
            detokenizer: tokenizer.map(Tokenizer::stream),
            stops: StopStrings::new(stop),
            stopped: false,
            text: String::new(),
        }
    }

    /// Takes the next token and gives the text that is certain now, which may be empty.
    ///
    /// # Errors
    /// If the tokenizer cannot decode the token.
    pub fn push(&mut self, token: u32) -> Result<String, GenerateError> {
        let piece = match &mut self.detokenizer {
            Some(detokenizer) => detokenizer.push(token)?,
            None => format!("{token} "),
        };
        Ok(self.take(&piece, false))
    }

    /// The text that the tokenizer or a possible stop string held back. Nothing follows.
    ///
    /// # Errors
    /// If the tokenizer decodes all tokens to another text than it did some.
    pub fn finish(&mut self) -> Result<String, GenerateError> {
        if self.stopped {
            return Ok(String::new());
        }
        let rest = self.detokenizer.take().map(Stream::finish).transpose()?.unwrap_or_default();
        Ok(self.take(&rest, true))
    }

    /// Whether the text ended in front of a stop string.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// All text that was given out.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Why the answer ended: a stop string looks like a cancelled generation to the network.
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
