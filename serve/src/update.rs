//! [`Update`] is a part of an answer. All interfaces create their events from updates.

use generate::TokenLogprobs;

/// A part of an answer.
#[derive(Clone, Debug)]
pub enum Update {
    /// Reasoning: text that the model writes before its answer.
    Reasoning(String),
    Content(String),
    /// A complete call of a function.
    Call(ToolCall),
    /// Probabilities of the next tokens of the answer.
    Logprobs(Vec<TokenLogprobs>),
    End(AnswerEnd),
}

/// A call of a function by the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// The arguments as JSON.
    pub arguments: String,
}

/// The end of an answer.
#[derive(Clone, Debug)]
pub struct AnswerEnd {
    pub reason: EndReason,
    pub usage: Usage,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    Stop,
    /// Like `Stop`, but a stop string of the request ended the text.
    StopString(String),
    Length,
    ToolCalls,
}

/// Token counts of an answer. If a prompt has several answers, only the first answer counts the tokens of the
/// prompt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub prompt: usize,
    /// The number of prompt tokens whose state a slot already contained.
    pub cached: usize,
    pub completion: usize,
}

impl Usage {
    pub fn add(&mut self, other: Self) {
        self.prompt += other.prompt;
        self.cached += other.cached;
        self.completion += other.completion;
    }
}
