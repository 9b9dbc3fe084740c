//! Collects whole answers for requests that do not stream.

use generate::TokenLogprobs;

use crate::answers::Answers;
use crate::failure::Failure;
use crate::update::{EndReason, ToolCall, Update, Usage};

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<ToolCall>,
    pub logprobs: Vec<TokenLogprobs>,
    pub reason: EndReason,
}

/// Waits for the end of all answers, and returns the answers and the total token counts.
pub async fn collect(mut answers: Answers) -> Result<(Vec<Answer>, Usage), Failure> {
    let empty = Answer {
        reasoning: String::new(),
        content: String::new(),
        calls: Vec::new(),
        logprobs: Vec::new(),
        reason: EndReason::Stop,
    };
    let mut all = vec![empty; answers.len()];
    let mut usage = Usage::default();
    while let Some(update) = answers.next().await {
        let (index, update) = update?;
        let Some(answer) = all.get_mut(index) else { continue };
        match update {
            Update::Reasoning(text) => answer.reasoning += &text,
            Update::Content(text) => answer.content += &text,
            Update::Call(call) => answer.calls.push(call),
            Update::Logprobs(new) => answer.logprobs.extend(new),
            Update::End(end) => {
                usage.add(end.usage);
                answer.reason = end.reason;
            }
        }
    }
    Ok((all, usage))
}
