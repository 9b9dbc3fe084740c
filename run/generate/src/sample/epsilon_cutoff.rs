//! Keeps tokens with at least a given probability, like `EpsilonLogitsWarper` of Hugging Face
//! transformers (Hewitt et al., "Truncation Sampling as Language Model Desmoothing", 2022).

use super::candidates::{Candidate, best, softmax};
use super::setting::{Effect, NumberField, Range, Setting, StepFacts};

pub(super) const STEP: StepFacts<f32> = StepFacts {
    effect: Effect::KeepsBest,
    is_off: |own| *own <= 0.0,
    run: |own, candidates, _| keep(candidates, (*own).into()),
    fields: &[NumberField {
        slot: |own| own,
        setting: Setting {
            placeholder: "P",
            help: "Keep tokens with at least this probability, and the most likely token; 0 keeps all tokens",
            model_key: Some("epsilon_cutoff"),
            ..Setting::new("epsilon_cutoff", Range::SHARE)
        },
    }],
};

/// Keeps tokens with at least the probability `least`, and the most likely token.
pub(super) fn keep(candidates: &mut Vec<Candidate>, least: f64) {
    let best = best(candidates);
    let mut probabilities = softmax(candidates).into_iter();
    let is_probable = |probability: Option<f64>| probability.is_some_and(|probability| probability >= least);
    candidates.retain(|candidate| is_probable(probabilities.next()) || candidate.logit >= best);
}
