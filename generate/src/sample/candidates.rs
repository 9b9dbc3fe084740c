//! The tokens that may still be chosen.

use std::cmp::Ordering;

/// A token that may still be chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub token: u32,
    /// More than an f32 holds, where the temperature is small.
    pub logit: f64,
}

/// Most likely first; of equals the lower token, as in the greedy choice.
pub(super) fn likely_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// Natural logarithms of the probabilities, with `libm`'s functions: the same bits everywhere.
pub(super) fn log_softmax(candidates: &[Candidate]) -> Vec<f64> {
    let max = candidates.iter().map(|candidate| candidate.logit).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = candidates.iter().map(|candidate| libm::exp(candidate.logit - max)).sum();
    let log = libm::log(sum);
    candidates.iter().map(|candidate| candidate.logit - max - log).collect()
}

/// Probabilities, with `libm`'s exponential: the same bits everywhere.
pub(super) fn softmax(candidates: &[Candidate]) -> Vec<f64> {
    let max = candidates.iter().map(|candidate| candidate.logit).fold(f64::NEG_INFINITY, f64::max);
    let weight = |candidate: &Candidate| libm::exp(candidate.logit - max);
    let weights: Vec<_> = candidates.iter().map(weight).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}
