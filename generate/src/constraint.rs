//! Constrained generation: a JSON schema or a grammar decides which tokens the sampler can choose.
//!
//! The library llguidance computes the allowed tokens by walking a trie of all tokens with an
//! Earley parser. If the text can end at the current position, the constraint allows the model's
//! stop tokens. If the constraint allows no further token, the text ends.

use std::fmt;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use crate::{GenerateError, Tokenizer};

mod vocabulary;
mod whitespace;

use vocabulary::Vocabulary;

/// Builds constraints for the tokens of one model.
pub struct Constrainer {
    factory: ParserFactory,
    /// An artificial stop token for a model without stop tokens. The model never chooses the
    /// artificial stop token.
    end: Option<u32>,
    whitespace_flexible: bool,
}

impl Constrainer {
    /// Creates a builder for the tokenizer and the stop tokens of a model.
    ///
    /// # Errors
    /// Returns an error if the bytes of the tokenizer's tokens cannot be determined.
    pub fn new(tokenizer: &Tokenizer, stop_tokens: &[u32]) -> Result<Self, GenerateError> {
        let mut words = tokenizer.bytes()?;
        let end = stop_tokens.is_empty().then_some(words.len() as u32);
        let ends = end.as_slice();
        let ends = if ends.is_empty() { stop_tokens } else { ends };
        let last = ends.iter().max().map_or(0, |&end| end as usize);
        words.resize(words.len().max(last + 1), Vec::new());
        let info = TokRxInfo::new(words.len() as u32, ends[0]);
        let tokens = TokTrie::from(&info, &words).with_eos_tokens(ends);
        let tokens: TokEnv = Arc::new(Vocabulary::new(tokens, tokenizer.clone()));
        let given_up = |why: Why| GenerateError::NoBytes { source: why };
        let mut factory = ParserFactory::new_simple(&tokens).map_err(|why| given_up(why.into()))?;
        factory.quiet().limits_mut().verbose_errors = false;
        Ok(Self { factory, end, whitespace_flexible: false })
    }

    /// Sets whether an answer in JSON may contain whitespace outside strings. By default,
    /// whitespace outside strings is not allowed, because small models write endless whitespace. A
    /// schema can override the setting for whitespace with `whitespace_flexible` or
    /// `whitespace_pattern` under `x-guidance`.
    #[must_use]
    pub fn whitespace_flexible(self, flexible: bool) -> Self {
        Self { whitespace_flexible: flexible, ..self }
    }

    /// Creates a constraint: the answer must be JSON that is valid under this JSON Schema (draft
    /// 2020-12). The answer contains the properties in the order of the schema.
    ///
    /// # Errors
    /// Returns an error if the schema is not JSON, or uses an unsupported feature.
    pub fn json_schema(&self, schema: &str) -> Result<Constraint, GenerateError> {
        let mut schema =
            serde_json::from_str(schema).map_err(|source| GenerateError::SchemaSyntax { source })?;
        if !self.whitespace_flexible {
            whitespace::compact(&mut schema);
        }
        let refused = |why: String| GenerateError::Schema { why };
        self.constraint(TopLevelGrammar::from_json_schema(schema)).map_err(refused)
    }

    /// Creates a constraint for texts that a grammar describes. The grammar is in llguidance's
    /// variant of Lark's notation. The grammar needs a rule `start`. The names of rules are in
    /// lower case, and the names of terminals are in upper case. In a rule of the grammar, `%json`
    /// followed by a JSON Schema matches JSON that is valid under this schema.
    ///
    /// # Errors
    /// Returns an error with the line and the column if the grammar is invalid.
    pub fn grammar(&self, grammar: &str) -> Result<Constraint, GenerateError> {
        if let Some((index, line)) = grammar.lines().enumerate().find(|(_, line)| line.contains("::=")) {
            let column = line.chars().take_while(|&c| c != ':').count() + 1;
            let why =
                "`::=` is of another notation (GBNF, BNF); expected Lark's, as `start: \"yes\" | \"no\"`";
            return Err(GenerateError::Grammar { at: Some((index + 1, column)), why: why.into() });
        }
        let follow = |grammar: &str| {
            self.constraint(TopLevelGrammar::from_lark(grammar.to_owned())).map_err(|why| {
                let (at, why) = located(&why);
                GenerateError::Grammar { at, why: why.to_owned() }
            })
        };
        // Compiles the unchanged grammar first, so that errors refer to positions in your text.
        let constraint = follow(grammar)?;
        match whitespace::compact_in_grammar(grammar) {
            Some(compact) if !self.whitespace_flexible => follow(&compact),
            _ => Ok(constraint),
        }
    }

    fn constraint(&self, grammar: TopLevelGrammar) -> Result<Constraint, String> {
        let mut matcher = Matcher::new(self.factory.create_parser(grammar));
        match matcher.get_error() {
            Some(why) => Err(brief(&why)),
            None => {
                // Checks the first position too, because some errors of a grammar appear only there.
                matcher.is_accepting().map_err(|why| brief(&why.to_string()))?;
                Ok(Constraint { matcher, end: self.end })
            }
        }
    }
}

type Why = Box<dyn std::error::Error + Send + Sync>;

/// A schema or grammar that a text must follow from its first token. [`Constrainer`] builds constraints.
#[derive(Clone)]
pub struct Constraint {
    matcher: Matcher,
    end: Option<u32>,
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").finish_non_exhaustive()
    }
}

impl Constraint {
    /// Creates the state of the constraint at the beginning of a text.
    pub(crate) fn begin(&self) -> Guide {
        // A plain clone would share the lexer's states and their lock.
        Guide { matcher: self.matcher.deep_clone(), end: self.end, step: 0 }
    }
}

/// The state of a constraint at a position of one text.
#[derive(Clone)]
pub(crate) struct Guide {
    matcher: Matcher,
    end: Option<u32>,
    step: u64,
}

impl fmt::Debug for Guide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guide").field("step", &self.step).finish_non_exhaustive()
    }
}

impl Guide {
    /// Returns the tokens that may come next, or `None` if the text is complete.
    ///
    /// # Errors
    /// Returns an error if no token may come next, or if llguidance reports an error.
    pub fn allowed(&mut self) -> Result<Option<Allowed>, GenerateError> {
        if self.is_complete() {
            return Ok(None);
        }
        let step = self.step;
        let mask = self.matcher.compute_mask().map_err(|why| match why.to_string() {
            why if why.contains("NoExtension") => GenerateError::NothingAllowed { step },
            why => GenerateError::Constraint { step, why: brief(&why) },
        })?;
        let only_the_end = self.end.is_some_and(|end| mask.is_allowed(end) && mask.num_set() == 1);
        Ok((!only_the_end).then_some(Allowed { mask, end: self.end }))
    }

    /// Whether the text is complete, and no further token can follow.
    pub fn is_complete(&self) -> bool {
        !self.matcher.is_error() && self.matcher.is_stopped()
    }

    /// Returns at most `most` tokens that are the only possible continuation under the grammar, and
    /// advances the constraint by these tokens.
    ///
    /// # Errors
    /// Returns an error if llguidance exceeds a limit.
    pub fn force(&mut self, most: usize) -> Result<Vec<u32>, GenerateError> {
        let mut forced = Vec::new();
        // Appending forced tokens can force further tokens, so the loop repeats.
        while forced.len() < most && !self.is_complete() {
            let mut next = self.matcher.compute_ff_tokens();
            if let Some(why) = self.matcher.get_error() {
                return Err(GenerateError::Constraint { step: self.step, why: brief(&why) });
            }
            if next.is_empty() {
                break;
            }
            next.truncate(most - forced.len());
            next.iter().try_for_each(|&token| self.take(token))?;
            forced.extend(next);
        }
        Ok(forced)
    }

    /// Advances the constraint by a chosen token.
    ///
    /// # Errors
    /// Returns an error if the token was not allowed, or if llguidance reports an error.
    pub fn take(&mut self, token: u32) -> Result<(), GenerateError> {
        let step = self.step;
        self.step += 1;
        let refused = |why: String| GenerateError::Constraint { step, why: brief(&why) };
        self.matcher.consume_token(token).map_err(|why| refused(why.to_string()))?;
        match self.matcher.stop_reason() {
            reason if reason.is_ok() => Ok(()),
            reason => Err(refused(reason.to_string())),
        }
    }
}

/// The tokens that a constraint allows at the next position.
pub(crate) struct Allowed {
    mask: SimpleVob,
    end: Option<u32>,
}

impl Allowed {
    pub fn has(&self, token: u32) -> bool {
        (token as usize) < self.mask.len() && self.end != Some(token) && self.mask.is_allowed(token)
    }
}

/// Returns the beginning of an error message of llguidance, which describes the error. The function
/// omits the rest of llguidance's message, which contains internals of llguidance or lines of the
/// grammar.
fn brief(why: &str) -> String {
    let is_shown = |line: &&str| {
        let number =
            line.trim_start().split_once(" | ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        !number && !line.starts_with('<')
    };
    why.lines().take_while(is_shown).map(str::trim).collect::<Vec<_>>().join(" ").trim().to_owned()
}

/// Removes a prefix such as `at 3(14): ` from a message. Returns the line and the column from an
/// error message, counted from 1, and the remaining text of the message.
fn located(why: &str) -> (Option<(usize, usize)>, &str) {
    let parsed = || {
        let (place, rest) = why.strip_prefix("at ").unwrap_or(why).split_once("): ")?;
        let (line, column) = place.split_once('(')?;
        Some(((line.parse().ok()?, column.parse().ok()?), rest))
    };
    parsed().map_or((None, why), |(at, rest)| (Some(at), rest))
}
