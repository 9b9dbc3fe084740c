//! Errors and notes about the keywords of a JSON schema.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// The most levels of nesting, which no generator's schema reaches, and on which llguidance recurses.
pub(crate) const DEEPEST: usize = 100;

/// The most optional properties of an object: llguidance keeps four states for each, and at most 2,000.
pub(crate) const OPTIONAL: usize = 490;

/// The reason why a schema is not JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct SchemaSyntaxError {
    /// The line of the error in the schema, counted from 1.
    pub line: usize,
    /// The column of the error in its line, counted from 1 in bytes.
    pub column: usize,
    /// A description of the error, with its position.
    message: String,
}

impl From<serde_json::Error> for SchemaSyntaxError {
    fn from(error: serde_json::Error) -> Self {
        Self { line: error.line(), column: error.column(), message: error.to_string() }
    }
}

/// The reason why Tracewright cannot follow a schema, with the place in the schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum SchemaError {
    /// A keyword has a value of the wrong kind.
    #[error("`{at}` is {found}, expected {expected}")]
    Kind {
        /// The JSON pointer to the value.
        at: String,
        /// The value in the schema, shortened.
        found: String,
        /// A description of the values that the keyword may have.
        expected: Cow<'static, str>,
    },
    /// A keyword of JSON Schema cannot be enforced while the text is generated.
    #[error("the keyword `{keyword}` at `{at}` cannot be enforced during generation; {help}")]
    Unsupported {
        /// The JSON pointer to the keyword.
        at: String,
        /// The keyword of JSON Schema.
        keyword: Cow<'static, str>,
        /// A sentence that describes another way to write the schema.
        help: Cow<'static, str>,
    },
    /// A reference does not lead to a schema in the same document.
    #[error(
        "`{at}` is `{reference}`, expected the place of a schema in this document; copy the schema into \
        `$defs`, and refer to it as `#/$defs/NAME`"
    )]
    Reference {
        /// The JSON pointer to the keyword `$ref`.
        at: String,
        /// The reference in the schema.
        reference: String,
    },
    /// An object has too many optional properties.
    #[error(
        "`{at}` has {found} optional properties, expected at most {OPTIONAL}; list properties that the answer must \
        have in `required`"
    )]
    OptionalProperties {
        /// The JSON pointer to the properties.
        at: String,
        /// The number of properties that are not required.
        found: usize,
    },
    /// The schema nests too deep.
    #[error(
        "the schema nests {found} levels deep, expected at most {DEEPEST}; use `$ref` for repeated levels"
    )]
    Depth {
        /// The number of levels.
        found: usize,
    },
    /// A regular expression uses a feature that a finite automaton cannot have.
    #[error("the pattern `{at}` contains {found}, expected a regular expression without it; {help}")]
    Pattern {
        /// The JSON pointer to the pattern.
        at: String,
        /// The part of the pattern that is not supported.
        found: String,
        /// A sentence that describes another way to write the pattern.
        help: Cow<'static, str>,
    },
}

/// A part of a schema that an answer can violate, although Tracewright follows the schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum SchemaNote {
    /// The items of an array are not from a short list of values, so equal items are not excluded.
    #[error("`uniqueItems` at `{at}` is not enforced, because the items are not from a list of values")]
    UniqueItems {
        /// The JSON pointer to the keyword.
        at: String,
    },
    /// The branches can overlap, so an answer can match several branches.
    #[error("`oneOf` at `{at}` is read as `anyOf`, because its branches can overlap")]
    OneOf {
        /// The JSON pointer to the keyword.
        at: String,
    },
    /// The schema is an object without a keyword of JSON Schema.
    #[error("the schema contains no keyword of JSON Schema, so any JSON follows it")]
    Anything,
}
