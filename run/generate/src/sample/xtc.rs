//! XTC ("exclude top choices") sometimes removes the most likely tokens.

use super::candidates::{Candidate, fraction, likely_first, softmax};
use super::setting::{Effect, NumberField, Range, Setting, StepFacts};

/// The settings of XTC (p-e-w, text-generation-webui, 2024; implemented as in llama.cpp). With a configured
/// probability, XTC removes the tokens above a threshold, but keeps the least likely of these tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Xtc {
    /// The probability with which XTC removes tokens, from 0 to 1; 0 turns XTC off.
    pub probability: f32,
    /// The probability of likely tokens. Above 0.5, at most one is likely, so XTC removes nothing.
    pub threshold: f32,
}

impl Default for Xtc {
    fn default() -> Self {
        Self { probability: 0.0, threshold: 0.1 }
    }
}

pub(super) const STEP: StepFacts<Xtc> = StepFacts {
    effect: Effect::RemovesBest,
    is_off: |xtc| xtc.probability <= 0.0 || xtc.threshold > 0.5,
    run: |xtc, candidates, draw| xtc.cut(candidates, || fraction(draw.random)),
    fields: &[
        NumberField {
            slot: |own| &mut own.probability,
            setting: Setting {
                placeholder: "P",
                help: "Probability with which XTC removes the most likely candidates for a token; 0 turns XTC off",
                ..Setting::new("xtc_probability", Range::SHARE)
            },
        },
        NumberField {
            slot: |own| &mut own.threshold,
            setting: Setting {
                placeholder: "P",
                help: "Probability above which a token is a candidate for XTC, which keeps only the least likely \
                   candidate; a value above 0.5 turns XTC off",
                ..Setting::new("xtc_threshold", Range::SHARE)
            },
        },
    ],
};

impl Xtc {
    /// Decides at random whether to remove the likely tokens. `random` returns a number in [0, 1).
    fn cut(&self, candidates: &mut Vec<Candidate>, random: impl FnOnce() -> f64) {
        if candidates.len() < 2 || random() >= f64::from(self.probability) {
            return;
        }
        candidates.sort_unstable_by(likely_first);
        let threshold = f64::from(self.threshold);
        let likely = softmax(candidates).into_iter().take_while(|&probability| probability >= threshold);
        candidates.drain(..likely.count().saturating_sub(1));
    }
}
