//! The reason why a schema or a grammar is not followed.

use serde::{Deserialize, Serialize};

use super::schema::PrepareError;
use crate::GenerateError;

/// Why a schema or a grammar is not followed. The compiling process sends it to the requesting one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The beginning of llguidance's message about a schema.
    #[error("{0}")]
    Schema(String),
    /// Line and column in a grammar, from 1, and the beginning of llguidance's message or a schema's error.
    #[error("{why}")]
    Grammar { at: Option<(usize, usize)>, why: String },
}

impl From<Refusal> for GenerateError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Prepare(PrepareError::Syntax(source)) => Self::SchemaSyntax { source },
            Refusal::Prepare(PrepareError::Schema(why)) => Self::SchemaKeyword(why),
            Refusal::Schema(why) => Self::Schema { why },
            Refusal::Grammar { at, why } => Self::Grammar { at, why },
        }
    }
}

/// Returns the beginning of llguidance's message, without its internals and lines of the grammar.
pub fn brief(why: &str) -> String {
    let is_shown = |line: &&str| {
        let number =
            line.trim_start().split_once(" | ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        !number && !line.starts_with('<')
    };
    why.lines().take_while(is_shown).map(str::trim).collect::<Vec<_>>().join(" ").trim().to_owned()
}

/// Removes a prefix such as `at 3(14): `. Returns line and column, from 1, and the remaining text.
pub fn located(why: &str) -> (Option<(usize, usize)>, &str) {
    let parsed = || {
        let (place, rest) = why.strip_prefix("at ").unwrap_or(why).split_once("): ")?;
        let (line, column) = place.split_once('(')?;
        Some(((line.parse().ok()?, column.parse().ok()?), rest))
    };
    parsed().map_or((None, why), |(at, rest)| (Some(at), rest))
}
