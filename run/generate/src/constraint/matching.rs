//! Computes the tokens that a schema or a grammar allows, with the library llguidance.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde::{Deserialize, Serialize};

use super::grammars::{self, PreparedGrammar};
use super::refusal::{Refusal, brief, located};
use super::schema::{self, Prepared, Slot};
use super::slots;
use super::vocabulary::{Encode, Vocabulary};
use crate::SchemaNote;

/// The text of a schema or a grammar. `is_flexible` permits whitespace in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// A JSON Schema, as JSON.
    Schema { text: String, is_flexible: bool },
    /// A grammar in llguidance's variant of Lark's notation.
    Grammar { text: String, is_flexible: bool },
}

impl Source {
    pub fn text(&self) -> &str {
        let (Self::Schema { text, .. } | Self::Grammar { text, .. }) = self;
        text
    }

    /// Converts a message of llguidance, or of a panic, about this source.
    pub fn refused(&self, why: &str) -> Refusal {
        let why = brief(why);
        match self {
            Self::Schema { .. } => Refusal::Schema(why),
            Self::Grammar { .. } => {
                let (at, why) = located(&why);
                Refusal::Grammar { at, why: why.to_owned() }
            }
        }
    }
}

/// A compiled schema or grammar, and the parts of its schemas that a text can violate.
pub struct CompiledSource {
    pub matching: Matching,
    pub notes: Vec<SchemaNote>,
}

/// Compiles schemas and grammars for the tokens of one model.
pub struct GrammarCompiler {
    factory: ParserFactory,
    /// An artificial stop token for a model without any; the model never chooses it.
    end: Option<u32>,
}

impl GrammarCompiler {
    /// Creates a compiler for tokens with the bytes `words`.
    pub fn new(words: &[Vec<u8>], stop_tokens: &[u32], encode: Encode) -> Result<Self, String> {
        let end = stop_tokens.is_empty().then_some(words.len() as u32);
        let ends = end.as_slice();
        let ends = if ends.is_empty() { stop_tokens } else { ends };
        let last = ends.iter().max().map_or(0, |&end| end as usize);
        let mut words = words.to_vec();
        words.resize(words.len().max(last + 1), Vec::new());
        let info = TokRxInfo::new(words.len() as u32, ends[0]);
        let tokens = TokTrie::from(&info, &words).with_eos_tokens(ends);
        let tokens: TokEnv = Arc::new(Vocabulary::new(tokens, encode));
        let mut factory = ParserFactory::new_simple(&tokens).map_err(|why| why.to_string())?;
        factory.quiet().limits_mut().verbose_errors = false;
        Ok(Self { factory, end })
    }

    pub fn compile(&self, source: &Source) -> Result<CompiledSource, Refusal> {
        caught(|| Ok(self.compiled(source))).unwrap_or_else(|why| Err(source.refused(&why)))
    }

    fn compiled(&self, source: &Source) -> Result<CompiledSource, Refusal> {
        let refused = |why: String| source.refused(&why);
        match source {
            Source::Schema { text, is_flexible } => {
                let Prepared { schema, slots, notes } = schema::prepare(text, *is_flexible, 0)?;
                let matching = self.matching(TopLevelGrammar::from_json_schema(schema), slots);
                Ok(CompiledSource { matching: matching.map_err(refused)?, notes })
            }
            Source::Grammar { text, is_flexible } => {
                let Some(schemas) = grammars::schemas(text) else {
                    let matching = self.matching(TopLevelGrammar::from_lark(text.clone()), Vec::new());
                    return Ok(CompiledSource { matching: matching.map_err(refused)?, notes: Vec::new() });
                };
                // Compiles the grammar without its schemas first, so that errors refer to positions
                // in your text.
                self.matching(TopLevelGrammar::from_lark(schemas.blank()), Vec::new()).map_err(refused)?;
                let PreparedGrammar { text, slots, notes } = schemas.prepared(*is_flexible)?;
                let matching = self.matching(TopLevelGrammar::from_lark(text), slots);
                let matching = matching.map_err(|why| source.refused(located(&why).1))?;
                Ok(CompiledSource { matching, notes })
            }
        }
    }

    fn matching(&self, grammar: TopLevelGrammar, slots: Vec<Slot>) -> Result<Matching, String> {
        let filled = slots::filled(grammar, slots, self.factory.tok_env(), self.factory.limits())?;
        let mut matcher = caught(|| Ok(Matcher::new(self.factory.create_parser_from_init_default(filled))))?;
        match matcher.get_error() {
            Some(why) => Err(why),
            None => {
                // Checks the first position too, because some errors of a grammar appear only there.
                matcher.is_accepting().map_err(|why| why.to_string())?;
                Ok(Matching { matcher, end: self.end })
            }
        }
    }
}

/// The state of a schema or a grammar at a position of one text.
#[derive(Clone)]
pub struct Matching {
    matcher: Matcher,
    end: Option<u32>,
}

impl Matching {
    /// Copies the state. A plain clone would share the lexer's states and their lock.
    pub fn copied(&self) -> Self {
        Self { matcher: self.matcher.deep_clone(), end: self.end }
    }

    /// Returns the tokens that may come next, with one bit per token, or `None` if the text is complete.
    pub fn mask(&mut self) -> Result<Option<Vec<u32>>, String> {
        if self.is_complete() {
            return Ok(None);
        }
        let mut mask = self.matcher.compute_mask().map_err(|why| why.to_string())?;
        if let Some(end) = self.end {
            if mask.is_allowed(end) && mask.num_set() == 1 {
                return Ok(None);
            }
            mask.disallow_token(end);
        }
        Ok(Some(mask.as_slice().to_vec()))
    }

    /// Whether the text is complete, and no further token can follow.
    pub fn is_complete(&self) -> bool {
        !self.matcher.is_error() && self.matcher.is_stopped()
    }

    /// Advances the state by at most `most` tokens that are the only continuation, and returns them.
    pub fn force(&mut self, most: usize) -> Result<Vec<u32>, String> {
        let mut forced = Vec::new();
        // Appending forced tokens can force further tokens, so the loop repeats.
        while forced.len() < most && !self.is_complete() {
            let mut next = self.matcher.compute_ff_tokens();
            if let Some(why) = self.matcher.get_error() {
                return Err(why);
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

    /// Advances the state by a chosen token.
    pub fn take(&mut self, token: u32) -> Result<(), String> {
        self.matcher.consume_token(token).map_err(|why| why.to_string())?;
        match self.matcher.stop_reason() {
            reason if reason.is_ok() => Ok(()),
            reason => Err(reason.to_string()),
        }
    }
}

/// Converts a panic to a message.
pub fn caught<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}
