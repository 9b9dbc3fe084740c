//! Top-nσ (Tang et al., "Top-nσ: Not All Logits Are You Need", 2024), as in llama.cpp.

use super::candidates::{Candidate, best};
use super::setting::{Effect, NumberField, Range, Setting, StepFacts};

pub(super) const STEP: StepFacts<f32> = StepFacts {
    effect: Effect::KeepsBest,
    is_off: |own| *own <= 0.0,
    run: |own, candidates, _| keep(candidates, *own),
    fields: &[NumberField {
        slot: |own| own,
        setting: Setting {
            flags: &["top-nsigma", "top-n-sigma"],
            help: "Keep tokens whose logits are at most N standard deviations below the highest logit; 0 or a negative \
               number keeps all tokens",
            ..Setting::new("top_n_sigma", Range::NUMBER)
        },
    }],
};

/// Keeps tokens whose logits are at most `n` standard deviations below the maximum.
fn keep(candidates: &mut Vec<Candidate>, n: f32) {
    let count = candidates.len() as f64;
    let mean = candidates.iter().map(|candidate| candidate.logit).sum::<f64>() / count;
    let square = |candidate: &Candidate| (candidate.logit - mean).powi(2);
    let deviation = (candidates.iter().map(square).sum::<f64>() / count).sqrt();
    let least = best(candidates) - f64::from(n) * deviation;
    candidates.retain(|candidate| candidate.logit >= least);
}
