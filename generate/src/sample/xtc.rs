//! XTC ("exclude top choices"): now and then the likeliest tokens are left out.

use super::candidates::{Candidate, likely_first, softmax};

/// With some probability, of the tokens that are likely enough only the least likely stays (p-e-w, text-generation-webui,
/// 2024; as llama.cpp does it).
#[derive(Debug, Clone, PartialEq)]
pub struct Xtc {
    /// How often; 0 is never.
    pub probability: f32,
    /// How likely is likely enough; above 0.5 no two tokens are.
    pub threshold: f32,
}

impl Default for Xtc {
    fn default() -> Self {
        Self { probability: 0.0, threshold: 0.1 }
    }
}

impl Xtc {
    /// Whether no token is ever left out.
    pub(super) fn is_off(&self) -> bool {
        self.probability <= 0.0 || self.threshold > 0.5
    }

    /// `random` gives a number in [0, 1).
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
