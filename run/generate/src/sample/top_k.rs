//! Keeps the k most likely tokens, like `TopKLogitsWarper` of Hugging Face transformers.

use super::candidates::{Candidate, likely_first};
use super::setting::{Effect, NumberField, Range, Setting, StepFacts};

pub(super) const STEP: StepFacts<usize> = StepFacts {
    effect: Effect::KeepsBest,
    is_off: |own| *own == 0,
    run: |own, candidates, _| keep(candidates, *own),
    fields: &[NumberField {
        slot: |own| own,
        setting: Setting {
            placeholder: "K",
            help: "Keep only the K most likely tokens; 0 or -1 keeps all tokens",
            model_key: Some("top_k"),
            ..Setting::new("top_k", Range::COUNT_OR_ALL)
        },
    }],
};

/// Unlike llama.cpp, the function also keeps tokens whose logits equal the k-th largest logit.
pub(super) fn keep(candidates: &mut Vec<Candidate>, k: usize) {
    if k == 0 || k >= candidates.len() {
        return;
    }
    let (_, kth, _) = candidates.select_nth_unstable_by(k - 1, likely_first);
    let least = kth.logit;
    candidates.retain(|candidate| candidate.logit >= least);
}
