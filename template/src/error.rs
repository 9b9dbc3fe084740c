//! What can go wrong with a chat template.

use std::path::PathBuf;

/// A chat template that cannot be read or rendered.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// Several chat templates, none of them the default one.
    #[error("the model has the chat templates `{names}`, expected one to be named `default`")]
    NoDefault {
        /// Their names, separated by commas.
        names: String,
    },
    /// A chat template that does not parse.
    #[error("the chat template{} is not valid Jinja{}: {why}", .at.of(), .at.line())]
    Syntax { at: Box<TemplatePlace>, why: String },
    /// A chat template that failed on this conversation.
    #[error("the chat template{} failed{}: {why}", .at.of(), .at.line())]
    Render { at: Box<TemplatePlace>, why: String },
    /// The chat template refused this conversation with `raise_exception`.
    #[error("the chat template refuses this conversation: {message}")]
    Raised { message: String },
    /// A conversation without messages.
    #[error("the conversation is empty, expected at least one message")]
    Empty,
    /// A message that is not an object.
    #[error("message {index} of the conversation is `{found}`, expected an object with `role` and `content`")]
    Message {
        /// Which message, from 0.
        index: usize,
        found: String,
    },
}

/// A place in a chat template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplatePlace {
    /// The file that the template stands in, if it came from one.
    pub file: Option<PathBuf>,
    /// Its name, if it is not the default one.
    pub name: Option<String>,
    /// A line of it, from 1, if it is about one.
    pub line: Option<usize>,
    /// The tag, or its beginning, as the template has it.
    pub tag: Option<String>,
}

impl TemplatePlace {
    fn of(&self) -> String {
        let name = self.name.iter().map(|name| format!(" `{name}`"));
        name.chain(self.file.iter().map(|file| format!(" in `{}`", file.display()))).collect()
    }

    fn line(&self) -> String {
        let line = self.line.iter().map(|line| format!(" at line {line}"));
        line.chain(self.tag.iter().map(|tag| format!(", `{tag}`"))).collect()
    }
}
