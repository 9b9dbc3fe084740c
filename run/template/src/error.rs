//! [`TemplateError`] lists the errors of chat templates.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The model has several chat templates, but no template has the name `default`.
    #[error("the model has the chat templates `{names}`, expected a template with the name `default`")]
    NoDefault {
        /// The names of the templates, separated by commas.
        names: String,
    },
    /// The chat template is not valid Jinja.
    #[error("the chat template{} is not valid Jinja{}: {why}", .at.of(), .at.line())]
    Syntax { at: Box<TemplatePlace>, why: String },
    /// The chat template caused an error for this conversation.
    #[error("the chat template{} failed{}: {why}", .at.of(), .at.line())]
    Render { at: Box<TemplatePlace>, why: String },
    /// The chat template rejected this conversation with `raise_exception`.
    #[error("the chat template rejects this conversation: {message}")]
    Raised { message: String },
    #[error("the conversation is empty, expected at least one message")]
    Empty,
    /// A message of the conversation is not a JSON object.
    #[error("message {index} of the conversation is `{found}`, expected an object with `role` and `content`")]
    Message {
        /// The index of the message, from 0.
        index: usize,
        found: String,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplatePlace {
    /// The file of the template, if the template came from a file.
    pub file: Option<PathBuf>,
    /// The name of the template, unless it is the default template.
    pub name: Option<String>,
    /// The line number in the template, from 1, if the error belongs to a line.
    pub line: Option<usize>,
    /// The tag with the error, as in the original template, shortened if the tag is long.
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
