//! Keeps tokens with at least the probability min(ε, √ε · exp(−entropy)), like `EtaLogitsWarper` of
//! Hugging Face transformers.

use super::candidates::{Candidate, log_softmax};
use super::epsilon_cutoff;
use super::setting::{Effect, NumberField, Range, Setting, StepFacts};

pub(super) const STEP: StepFacts<f32> = StepFacts {
    effect: Effect::KeepsBest,
    is_off: |own| *own <= 0.0,
    run: |own, candidates, _| keep(candidates, *own),
    fields: &[NumberField {
        slot: |own| own,
        setting: Setting {
            placeholder: "P",
            help: "Keep tokens with at least this probability, or with less if the next token is hard to predict; 0 keeps \
               all tokens",
            model_key: Some("eta_cutoff"),
            ..Setting::new("eta_cutoff", Range::SHARE)
        },
    }],
};

fn keep(candidates: &mut Vec<Candidate>, epsilon: f32) {
    let epsilon = f64::from(epsilon);
    let entropy: f64 = log_softmax(candidates).into_iter().map(|log| -log * libm::exp(log)).sum();
    epsilon_cutoff::keep(candidates, epsilon.min(epsilon.sqrt() * libm::exp(-entropy)));
}
