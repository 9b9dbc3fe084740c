//! Divides the logits by the temperature.

use super::candidates::{Candidate, likely_first};
use super::setting::{Effect, NumberField, Range, Setting, StepFacts};

pub(super) const STEP: StepFacts<f32> = StepFacts {
    effect: Effect::KeepsBest,
    is_off: |own| *own == 1.0,
    run: |own, candidates, _| heat(candidates, *own),
    fields: &[NumberField {
        slot: |own| own,
        setting: Setting {
            flags: &["temp", "temperature"],
            placeholder: "TEMP",
            help: "Sampling temperature: 0 always chooses the most likely token, and a higher temperature chooses unlikely \
               tokens more often",
            model_key: Some("temperature"),
            ..Setting::new("temperature", Range::FROM_ZERO)
        },
    }],
};

/// At the temperature 0, only the largest logit remains, among equal ones the token with the lowest id.
fn heat(candidates: &mut Vec<Candidate>, temperature: f32) {
    if temperature > 0.0 {
        candidates.iter_mut().for_each(|candidate| candidate.logit /= f64::from(temperature));
    } else if let Some(best) = candidates.iter().copied().min_by(likely_first) {
        *candidates = vec![best];
    }
}
