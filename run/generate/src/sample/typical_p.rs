//! Typical sampling (Meister et al., "Locally Typical Sampling", 2022), like `TypicalLogitsWarper`
//! of Hugging Face transformers.

use super::candidates::{Candidate, log_softmax};
use super::setting::{Effect, NumberField, Range, Setting, StepFacts};

pub(super) const STEP: StepFacts<f32> = StepFacts {
    effect: Effect::RemovesBest,
    is_off: |own| *own >= 1.0,
    run: |own, candidates, _| keep(candidates, *own),
    fields: &[NumberField {
        slot: |own| own,
        setting: Setting {
            flags: &["typical", "typical-p"],
            placeholder: "P",
            help: "Keep the tokens whose surprise (negative log probability) is nearest to the average surprise, up to \
               this total probability; 1 keeps all tokens",
            model_key: Some("typical_p"),
            ..Setting::new("typical_p", Range::SHARE)
        },
    }],
};

/// Keeps the tokens whose surprise is nearest to the entropy, up to a total probability of `mass`.
fn keep(candidates: &mut Vec<Candidate>, mass: f32) {
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
