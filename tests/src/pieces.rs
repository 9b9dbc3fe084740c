//! The prompts of a golden in other pieces than chunks: token by token, and several prompts in parallel.

use std::ops::ControlFlow;

use tracewright::generate::{Batch, Network, Session, TokenOptions};

use crate::built::Result;
use crate::golden::{Comparison, Golden};

/// Compares the logits at each position of the longest prompt. A session gives the network one token at a time.
pub fn token_by_token(golden: &Golden, network: &Network) -> Result<Comparison> {
    let mut report = Comparison::within(golden.bound());
    let prompts = golden.prompts.iter().enumerate();
    let (number, prompt) =
        prompts.max_by_key(|(_, prompt)| prompt.prompt_tokens.len()).ok_or("no prompts")?;
    let (reference, mut session) = (golden.reference(number)?, Session::new(network));
    report.prompts += 1;
    for (position, &token) in prompt.fed().iter().enumerate() {
        let row = session.feed(&[token])?;
        report.row(&reference, number, position, &row);
    }
    Ok(report)
}

/// Compares the continuations of all prompts in one batch. If there are more prompts than rows of the batch, prompts
/// join as other prompts end.
pub fn in_batches(golden: &Golden, network: &Network) -> Result<Comparison> {
    let mut report = Comparison::within(golden.bound());
    let prompts: Vec<&[u32]> = golden.prompts.iter().map(|prompt| &prompt.prompt_tokens[..]).collect();
    let max_tokens = golden.prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
    for keep_logits in [true, false] {
        let options = TokenOptions { max_tokens, keep_logits, ..TokenOptions::default() };
        let answers = Batch::new(network).generate(&prompts, &options, |_, _| ControlFlow::Continue(()))?;
        for (i, (answer, prompt)) in answers.iter().zip(&golden.prompts).enumerate() {
            report.prompts += usize::from(keep_logits);
            let reference = golden.reference(i)?;
            report.continuation(&reference, i, prompt, answer);
        }
    }
    Ok(report)
}
