//! Keeps the most likely tokens up to a fraction of the entropy, like transformers' `TopHLogitsWarper`.

use super::candidates::{Candidate, likely_first, log_softmax};
use super::setting::{Effect, NumberField, Range, Setting, StepFacts};

pub(super) const STEP: StepFacts<f32> = StepFacts {
    effect: Effect::KeepsBest,
    is_off: |own| *own <= 0.0,
    run: |own, candidates, _| keep(candidates, *own),
    fields: &[NumberField {
        slot: |own| own,
        setting: Setting {
            placeholder: "X",
            help: "Keep the most likely tokens up to this fraction of the entropy of the 100 most likely tokens; 0 keeps \
               all tokens",
            model_key: Some("top_h"),
            ..Setting::new("top_h", Range::SHARE)
        },
    }],
};

fn keep(candidates: &mut Vec<Candidate>, share: f32) {
    const MOST: usize = 100;
    candidates.sort_unstable_by(likely_first);
    candidates.truncate(MOST);
    let terms: Vec<f64> = log_softmax(candidates).into_iter().map(|log| -log * libm::exp(log)).collect();
    let most = terms.iter().sum::<f64>() * f64::from(share);
    let mut cumulative = 0.0;
    let within = terms.iter().take_while(|term| {
        cumulative += **term;
        cumulative <= most
    });
    let keep = within.count().max(1);
    candidates.truncate(keep);
}
