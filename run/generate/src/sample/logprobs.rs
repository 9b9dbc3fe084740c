//! The probabilities of tokens at one position.

use super::candidates::{Candidate, likely_first, log_softmax};

/// A token, and the logarithm of its probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Logprob {
    /// The token's id in the vocabulary.
    pub token: u32,
    /// The natural logarithm of the token's probability.
    pub logprob: f64,
}

/// The chosen and the most likely tokens at one position. As in OpenAI's `logprobs` and llama.cpp's
/// `n_probs`, the model's own logits count, before [`Sampling`](super::Sampling) or a constraint.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The token that the sampler chose at this position.
    pub chosen: Logprob,
    /// The most likely tokens at this position, in descending order of their probabilities.
    pub top: Vec<Logprob>,
}

impl TokenLogprobs {
    /// Finds the `count` most likely tokens in the logits of one position, and adds the chosen token.
    pub fn of(logits: &[f32], chosen: u32, count: usize) -> Self {
        let candidate = |(token, &logit): (u32, &f32)| Candidate { token, logit: logit.into() };
        let candidates: Vec<_> = (0..).zip(logits).map(candidate).collect();
        let logprobs = log_softmax(&candidates);
        let of = |token: u32| Logprob { token, logprob: logprobs[token as usize] };
        let mut likely: Vec<&Candidate> = candidates.iter().collect();
        let count = count.min(likely.len());
        if count < likely.len() {
            likely.select_nth_unstable_by(count, |a, b| likely_first(a, b));
            likely.truncate(count);
        }
        likely.sort_unstable_by(|a, b| likely_first(a, b));
        Self { chosen: of(chosen), top: likely.into_iter().map(|candidate| of(candidate.token)).collect() }
    }
}
