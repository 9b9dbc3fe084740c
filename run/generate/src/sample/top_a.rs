//! Top-a (BlinkDL, RWKV-LM, 2022), as in KoboldCpp: few tokens remain if the model is sure of the best.

use super::candidates::{Candidate, softmax};
use super::setting::{Effect, NumberField, Range, Setting, StepFacts};

pub(super) const STEP: StepFacts<f32> = StepFacts {
    effect: Effect::KeepsBest,
    is_off: |own| *own <= 0.0,
    run: |own, candidates, _| keep(candidates, *own),
    fields: &[NumberField {
        slot: |own| own,
        setting: Setting {
            placeholder: "A",
            help: "Keep tokens with at least A times the square of the highest probability; 0 keeps all tokens",
            ..Setting::new("top_a", Range::SHARE)
        },
    }],
};

fn keep(candidates: &mut Vec<Candidate>, a: f32) {
    let probabilities = softmax(candidates);
    let best = probabilities.iter().copied().fold(0.0, f64::max);
    let mut probabilities = probabilities.into_iter();
    candidates.retain(|_| {
        probabilities.next().is_some_and(|probability| probability >= f64::from(a) * best * best)
    });
}
