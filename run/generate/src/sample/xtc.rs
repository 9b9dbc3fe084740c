//! XTC ("exclude top choices") sometimes removes the most likely tokens.

use super::candidates::{Candidate, likely_first, softmax};

/// The settings of XTC (p-e-w, text-generation-webui, 2024; implemented as in llama.cpp). With a
/// configured probability, XTC removes the tokens above a threshold, but keeps the least likely of
/// these tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Xtc {
    /// The probability with which XTC removes tokens, from 0 to 1; 0 turns XTC off.
    pub probability: f32,
    /// The probability above which XTC considers a token likely. With a threshold above 0.5, at
    /// most one token is likely, so XTC removes nothing.
    pub threshold: f32,
}

impl Default for Xtc {
    fn default() -> Self {
        Self { probability: 0.0, threshold: 0.1 }
    }
}

impl Xtc {
    /// Whether XTC never removes a token.
    pub(super) fn is_off(&self) -> bool {
        self.probability <= 0.0 || self.threshold > 0.5
    }

    /// Decides at random whether to remove the likely tokens. `random` returns a number in [0, 1).
    pub(super) fn cut(&self, candidates: &mut Vec<Candidate>, random: impl FnOnce() -> f64) {
        if candidates.len() < 2 || random() >= f64::from(self.probability) {
            return;
        }
        candidates.sort_unstable_by(likely_first);
        let threshold = f64::from(self.threshold);
        let likely = softmax(candidates).into_iter().take_while(|&probability| probability >= threshold);
        candidates.drain(..likely.count().saturating_sub(1));
    }
}
