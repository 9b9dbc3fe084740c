//! Sampling steps that remove unlikely tokens. Each sampling step in this file keeps at least one
//! token.

use super::candidates::{Candidate, likely_first, log_softmax, softmax};

/// Keeps the k most likely tokens, like `TopKLogitsWarper` of Hugging Face transformers. Unlike
/// llama.cpp, the function also keeps tokens whose logits equal the k-th largest logit.
pub(super) fn keep_top_k(candidates: &mut Vec<Candidate>, k: usize) {
    if k == 0 || k >= candidates.len() {
        return;
    }
    let (_, kth, _) = candidates.select_nth_unstable_by(k - 1, likely_first);
    let least = kth.logit;
    candidates.retain(|candidate| candidate.logit >= least);
}

/// Keeps the most likely tokens with a total probability of p, like `TopPLogitsWarper` of Hugging
/// Face transformers. The function removes the least likely tokens first, as long as the removed
/// tokens have a total probability of at most 1 − p.
pub(super) fn keep_top_p(candidates: &mut Vec<Candidate>, p: f32) {
    candidates.sort_unstable_by(likely_first);
    let mut cumulative = 0.0;
    let unlikely = softmax(candidates).into_iter().rev().take_while(|probability| {
        cumulative += probability;
        cumulative <= 1.0 - f64::from(p)
    });
    let keep = candidates.len() - unlikely.count();
    candidates.truncate(keep.max(1));
}

/// Keeps tokens with at least p times the probability of the most likely token, like
/// `MinPLogitsWarper` of Hugging Face transformers.
pub(super) fn keep_min_p(candidates: &mut Vec<Candidate>, p: f32) {
    let probabilities = softmax(candidates);
    let least = f64::from(p) * probabilities.iter().copied().fold(0.0, f64::max);
    let mut probabilities = probabilities.into_iter();
    candidates.retain(|_| probabilities.next().is_some_and(|probability| probability >= least));
}

/// Keeps typical tokens (Meister et al., "Locally Typical Sampling", 2022), like
/// `TypicalLogitsWarper` of Hugging Face transformers. Typical tokens are the tokens whose surprise
/// is nearest to the entropy, up to a total probability of `mass`. Typical sampling can remove the
/// most likely token.
pub(super) fn keep_typical(candidates: &mut Vec<Candidate>, mass: f32) {
    let logs = log_softmax(candidates);
    let entropy: f64 = logs.iter().map(|&log| -log * libm::exp(log)).sum();
    let unusual: Vec<f64> = logs.iter().map(|log| (-log - entropy).abs()).collect();
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by(|&a, &b| unusual[a].total_cmp(&unusual[b]));
    let mut cumulative = 0.0;
    let last = order.iter().find(|&&index| {
        cumulative += libm::exp(logs[index]);
        cumulative >= f64::from(mass)
    });
    let most = last.or(order.last()).map_or(f64::INFINITY, |&index| unusual[index]);
    let mut unusual = unusual.into_iter();
    candidates.retain(|_| unusual.next().is_some_and(|unusual| unusual <= most));
}

/// Keeps tokens whose logits are at most `n` standard deviations below the maximum (Tang et al., "Top-nσ",
/// 2024).
pub(super) fn keep_top_n_sigma(candidates: &mut Vec<Candidate>, n: f32) {
    let count = candidates.len() as f64;
    let mean = candidates.iter().map(|candidate| candidate.logit).sum::<f64>() / count;
    let square = |candidate: &Candidate| (candidate.logit - mean).powi(2);
    let deviation = (candidates.iter().map(square).sum::<f64>() / count).sqrt();
    let best = candidates.iter().map(|candidate| candidate.logit).fold(f64::NEG_INFINITY, f64::max);
    let least = best - f64::from(n) * deviation;
    candidates.retain(|candidate| candidate.logit >= least);
}

/// Keeps the most likely tokens up to the fraction `share` of the entropy of the 100 most likely
/// tokens, like `TopHLogitsWarper` of Hugging Face transformers.
pub(super) fn keep_top_h(candidates: &mut Vec<Candidate>, share: f32) {
    const MOST: usize = 100;
    candidates.sort_unstable_by(likely_first);
    candidates.truncate(MOST);
    let terms: Vec<f64> = log_softmax(candidates).into_iter().map(|log| -log * libm::exp(log)).collect();
    let most = terms.iter().sum::<f64>() * f64::from(share);
    let mut cumulative = 0.0;
    let within = terms.iter().take_while(|term| {
        cumulative += **term;
        cumulative <= most
    });
    let keep = within.count().max(1);
    candidates.truncate(keep);
}

/// Keeps tokens with at least the probability `least`, and the most likely token, like
/// `EpsilonLogitsWarper` of Hugging Face transformers (Hewitt et al., "Truncation Sampling as
/// Language Model Desmoothing", 2022).
pub(super) fn keep_probable(candidates: &mut Vec<Candidate>, least: f64) {
    let best = candidates.iter().map(|candidate| candidate.logit).fold(f64::NEG_INFINITY, f64::max);
    let mut probabilities = softmax(candidates).into_iter();
    let is_probable = |probability: Option<f64>| probability.is_some_and(|probability| probability >= least);
    candidates.retain(|candidate| is_probable(probabilities.next()) || candidate.logit >= best);
}

/// Keeps tokens with at least the probability min(ε, √ε · exp(−entropy)), and the most likely
/// token, like `EtaLogitsWarper` of Hugging Face transformers.
pub(super) fn keep_eta(candidates: &mut Vec<Candidate>, epsilon: f32) {
    let epsilon = f64::from(epsilon);
    let entropy: f64 = log_softmax(candidates).into_iter().map(|log| -log * libm::exp(log)).sum();
    keep_probable(candidates, epsilon.min(epsilon.sqrt() * libm::exp(-entropy)));
}
