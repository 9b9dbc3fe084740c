//! [`Update`]: a part of an answer, in the form that all interfaces write from.

use generate::TokenLogprobs;

/// A part of an answer.
#[derive(Clone, Debug)]
pub enum Update {
    /// Text that the model writes before its answer.
    Reasoning(String),
    Content(String),
    /// A whole call of a function. Each comes once.
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

/// How an answer ended.
#[derive(Clone, Debug)]
pub struct AnswerEnd {
    pub reason: EndReason,
    pub usage: Usage,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    Stop,
    /// As `Stop`, by this stop string of the request.
    StopString(String),
    Length,
    ToolCalls,
}

/// Counts of tokens. A prompt counts for the first of its answers alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub prompt: usize,
    /// Tokens of the prompt that were not computed, because a slot had their state.
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
