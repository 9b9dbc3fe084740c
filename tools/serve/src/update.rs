//! [`Update`] is a part of an answer. For each API, the server converts updates to events of the API.

use std::time::Duration;

use generate::TokenLogprobs;

/// A part of an answer that the server can send immediately.
#[derive(Clone, Debug)]
pub enum Update {
    /// Reasoning, which is text that the model writes before its answer.
    Reasoning(String),
    Content(String),
    /// A complete function call.
    Call(ToolCall),
    /// The probabilities of the next tokens of the answer.
    Logprobs(Vec<TokenLogprobs>),
    End(AnswerEnd),
}

/// A function call that the model has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// The arguments of the function call, as JSON.
    pub arguments: String,
}

/// The answer has ended.
#[derive(Clone, Debug)]
pub struct AnswerEnd {
    pub reason: EndReason,
    pub usage: Usage,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    Stop,
    /// The text of the answer ended at a stop string of the request.
    StopString(String),
    Length,
    ToolCalls,
}

impl EndReason {
    /// Returns OpenAI's word for the end of an answer.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Stop | Self::StopString(_) => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// The numbers of prompt tokens and generated tokens of an answer. If a prompt has several answers,
/// only the counts of the first answer include the tokens of the prompt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub prompt: usize,
    /// The number of prompt tokens whose state (such as the KV cache) was reused from an earlier prompt.
    pub cached: usize,
    pub completion: usize,
    /// The time of all calls until the first token.
    pub prefill: Duration,
    /// The time of all later calls.
    pub decode: Duration,
}

impl Usage {
    pub fn add(&mut self, other: Self) {
        self.prompt += other.prompt;
        self.cached += other.cached;
        self.completion += other.completion;
        self.prefill += other.prefill;
        self.decode += other.decode;
    }
}
