//! Keeps tokens with at least p times the largest probability, like transformers' `MinPLogitsWarper`.

use super::candidates::{Candidate, softmax};
use super::setting::{Effect, NumberField, Range, Setting, StepFacts};

pub(super) const STEP: StepFacts<f32> = StepFacts {
    effect: Effect::KeepsBest,
    is_off: |own| *own <= 0.0,
    run: |own, candidates, _| keep(candidates, *own),
    fields: &[NumberField {
        slot: |own| own,
        setting: Setting {
            placeholder: "P",
            help: "Keep tokens with at least this fraction of the highest probability; 0 keeps all tokens",
            model_key: Some("min_p"),
            ..Setting::new("min_p", Range::SHARE)
        },
    }],
};

pub(super) fn keep(candidates: &mut Vec<Candidate>, p: f32) {
    let probabilities = softmax(candidates);
    let least = f64::from(p) * probabilities.iter().copied().fold(0.0, f64::max);
    let mut probabilities = probabilities.into_iter();
    candidates.retain(|_| probabilities.next().is_some_and(|probability| probability >= least));
}
