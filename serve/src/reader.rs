//! Reads the text of an answer: reasoning, content and calls of functions.

use crate::answers::Update;

/// What the text of an answer may contain.
#[derive(Clone, Debug, Default)]
pub struct Reading {}

/// A call of a function by the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// The arguments as JSON.
    pub arguments: String,
}

/// The text of one answer so far.
pub struct Reader {}

impl Reading {
    /// The special tokens that structure the text.
    pub fn shown(&self) -> Vec<String> {
        Vec::new()
    }
}

impl Reader {
    pub fn new(_: Reading) -> Self {
        Self {}
    }

    pub fn push(&mut self, piece: &str) -> Vec<Update> {
        match piece.is_empty() {
            true => Vec::new(),
            false => vec![Update::Content(piece.to_owned())],
        }
    }

    pub fn finish(&mut self) -> Vec<Update> {
        Vec::new()
    }

    pub fn has_calls(&self) -> bool {
        false
    }
}
