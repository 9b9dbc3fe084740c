//! The tokens from which the sampler chooses.

use std::cmp::Ordering;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng as _;

/// A token that the sampler can choose, and its logit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub token: u32,
    /// The logit is an f64 number, because the division by a small temperature can exceed the range of f32.
    pub logit: f64,
}

/// Sorts by descending logit. At equal logits, the lower id comes first, as in the greedy choice.
pub(super) fn likely_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// The logarithms of the candidates' probabilities; `libm` makes them equal on every machine.
pub(super) fn log_softmax(candidates: &[Candidate]) -> Vec<f64> {
    let max = best(candidates);
    let sum: f64 = candidates.iter().map(|candidate| libm::exp(candidate.logit - max)).sum();
    let log = libm::log(sum);
    candidates.iter().map(|candidate| candidate.logit - max - log).collect()
}

/// Returns the probabilities of the candidates. The crate `libm` makes the results equal on every machine.
pub(super) fn softmax(candidates: &[Candidate]) -> Vec<f64> {
    let max = best(candidates);
    let weight = |candidate: &Candidate| libm::exp(candidate.logit - max);
    let weights: Vec<_> = candidates.iter().map(weight).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

/// Returns the largest logit.
pub(super) fn best(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| candidate.logit).fold(f64::NEG_INFINITY, f64::max)
}

/// Returns a random number in [0, 1) with 53 bits.
pub(super) fn fraction(random: &mut ChaCha8Rng) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}
