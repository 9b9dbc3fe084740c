//! Keeps the most likely tokens with a total probability of p, like transformers' `TopPLogitsWarper`.

use super::candidates::{Candidate, likely_first, softmax};
use super::setting::{Effect, NumberField, Range, Setting, StepFacts};

pub(super) const STEP: StepFacts<f32> = StepFacts {
    effect: Effect::KeepsBest,
    is_off: |own| *own >= 1.0,
    run: |own, candidates, _| keep(candidates, *own),
    fields: &[NumberField {
        slot: |own| own,
        setting: Setting {
            placeholder: "P",
            help: "Keep the smallest set of most likely tokens whose probabilities add up to at least this value; 1 keeps \
               all tokens",
            model_key: Some("top_p"),
            ..Setting::new("top_p", Range::SHARE)
        },
    }],
};

/// Removes the least likely tokens, as long as their total probability is at most 1 − p.
pub(super) fn keep(candidates: &mut Vec<Candidate>, p: f32) {
    candidates.sort_unstable_by(likely_first);
    let mut cumulative = 0.0;
    let unlikely = softmax(candidates).into_iter().rev().take_while(|probability| {
        cumulative += probability;
        cumulative <= 1.0 - f64::from(p)
    });
    let keep = candidates.len() - unlikely.count();
    candidates.truncate(keep.max(1));
}
