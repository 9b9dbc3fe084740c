//! Limits on the number of tokens, and the options that raise these limits.

use std::fmt;

use tracewright::Plan;

/// The largest number of tokens that a built network can process.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub tokens: usize,
    /// The model's own limit on the number of tokens, or `None` if the limit is unknown.
    pub longest: Option<usize>,
    pub set_by: SetBy,
}

/// The cause of a token limit that is lower than the model's own limit.
#[derive(Clone, Copy, Debug)]
pub enum SetBy {
    /// An option of the command, such as `--context`, sets the limit on the number of tokens.
    Flag(&'static str),
    Export,
}

impl Limit {
    /// Returns the largest number of tokens that a plan's context can contain. The option
    /// `--context` sets the length of the context.
    pub fn of(plan: &Plan) -> Self {
        let longest = Some(plan.model.max_context());
        Self { tokens: plan.context, longest, set_by: SetBy::Flag("--context") }
    }

    fn is_of_the_model(self) -> bool {
        self.longest == Some(self.tokens)
    }

    /// Explains how to raise the limit on the number of tokens. The result is `None` if the limit
    /// already equals the model's own limit.
    pub fn raised(self) -> Option<String> {
        let most = self.longest.map(|longest| longest.to_string());
        let most = most.unwrap_or_else(|| "the model's own limit".into());
        match self.set_by {
            _ if self.is_of_the_model() => None,
            SetBy::Flag(flag) => Some(format!("`{flag} N` takes more, up to {most}")),
            SetBy::Export => Some(format!("export the model again with `--context N`, up to {most}")),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tokens, set_by, .. } = self;
        match set_by {
            _ if self.is_of_the_model() => write!(f, "{tokens}, the model's own limit"),
            SetBy::Flag(flag) => write!(f, "{tokens}, the `{flag}`"),
            SetBy::Export => write!(f, "{tokens}, the context of the export"),
        }
    }
}
