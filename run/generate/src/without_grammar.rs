//! Replaces constrained generation in builds without the cargo feature `grammar`. No constraint
//! exists in these builds, so the types of constraints and of their states have no values.

use std::io::{self, Read, Write};
use std::time::Duration;

use crate::{ConstraintProgram, GenerateError, SchemaNote, Tokenizer};

/// Builds constraints for the tokens of one model, in builds with the cargo feature `grammar`.
pub struct Constrainer(());

impl Constrainer {
    /// Creates a builder, which returns an error for every schema and every grammar.
    ///
    /// # Errors
    /// Returns no error in builds without the cargo feature `grammar`.
    pub fn new(_: &Tokenizer, _: &[u32]) -> Result<Self, GenerateError> {
        Ok(Self(()))
    }

    /// Creates a builder, which returns an error for every schema and every grammar.
    pub fn within(_: &ConstraintProcesses, _: &[u32]) -> Self {
        Self(())
    }

    /// Returns the builder unchanged.
    #[must_use]
    pub fn whitespace_flexible(self, _: bool) -> Self {
        self
    }

    /// Returns [`GenerateError::WithoutGrammar`].
    ///
    /// # Errors
    /// Always returns an error.
    pub fn json_schema(&self, _: &str) -> Result<Constraint, GenerateError> {
        Err(GenerateError::WithoutGrammar)
    }

    /// Returns [`GenerateError::WithoutGrammar`].
    ///
    /// # Errors
    /// Always returns an error.
    pub fn grammar(&self, _: &str) -> Result<Constraint, GenerateError> {
        Err(GenerateError::WithoutGrammar)
    }
}

/// The processes that follow schemas and grammars, in builds with the cargo feature `grammar`.
#[derive(Clone, Debug)]
pub struct ConstraintProcesses(());

impl ConstraintProcesses {
    /// Creates a value that starts no process.
    ///
    /// # Errors
    /// Returns no error in builds without the cargo feature `grammar`.
    pub fn new(_: ConstraintProgram, _: &Tokenizer) -> Result<Self, GenerateError> {
        Ok(Self(()))
    }
}

/// Does nothing, because no schema is followed in builds without the cargo feature `grammar`.
pub fn allow_crashes() {}

/// Returns [`GenerateError::WithoutGrammar`].
///
/// # Errors
/// Always returns an error.
pub fn answer_constraints(_: impl Read, _: impl Write) -> io::Result<()> {
    Err(io::Error::other(GenerateError::WithoutGrammar))
}

/// A schema or grammar that a text must follow from its first token. The type has no values in
/// builds without the cargo feature `grammar`.
#[derive(Clone, Debug)]
pub struct Constraint(Guide);

impl Constraint {
    /// Is never called, because no constraint exists.
    pub fn notes(&self) -> &[SchemaNote] {
        match self.0 {}
    }

    /// Is never called, because no constraint exists.
    ///
    /// # Errors
    /// Returns no error, because no constraint exists.
    pub fn allowed_tokens(&self, _: &[u32]) -> Result<(usize, bool), GenerateError> {
        match self.0 {}
    }

    pub(crate) fn begin(&self) -> Guide {
        match self.0 {}
    }
}

/// The state of a constraint at a position of one text.
#[derive(Clone, Debug)]
pub(crate) enum Guide {}

impl Guide {
    pub fn allowed(&mut self) -> Result<Option<Allowed>, GenerateError> {
        match *self {}
    }

    pub fn is_complete(&self) -> bool {
        match *self {}
    }

    pub fn advance(&mut self, _: u32, _: usize) -> Result<(), GenerateError> {
        match *self {}
    }

    pub fn forced(&mut self) -> Result<Vec<u32>, GenerateError> {
        match *self {}
    }

    pub fn is_ready(&mut self, _: Duration) -> bool {
        match *self {}
    }
}

/// The tokens that a constraint allows at the next position.
pub(crate) enum Allowed {}

impl Allowed {
    pub fn has(&self, _: u32) -> bool {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_build_without_grammars_says_so() {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo");
        let tokenizer = Tokenizer::load(&demo).unwrap().unwrap();
        let constrainer = Constrainer::new(&tokenizer, &[]).unwrap();
        for refused in [constrainer.json_schema("{}"), constrainer.grammar("start: \"a\"")] {
            let error = refused.unwrap_err();
            assert!(matches!(error, GenerateError::WithoutGrammar), "{error}");
            assert!(error.to_string().contains("the cargo feature `grammar`"), "{error}");
        }
    }
}
