//! Penalties for tokens that the text already contains.

use super::candidates::Candidate;
use super::setting::{Effect, NumberField, Range, Setting, StepFacts};

/// Penalties for tokens among the last ones, including the prompt. The repetition penalty equals
/// `RepetitionPenaltyLogitsProcessor` of transformers (Keskar et al., "CTRL", 2019). Frequency and presence
/// penalty are OpenAI's. The repetition penalty comes first, like in llama.cpp.
#[derive(Debug, Clone, PartialEq)]
pub struct Penalties {
    /// The number of last tokens that count, or `None` for all, as in Hugging Face transformers.
    pub last_n: Option<usize>,
    /// The repetition penalty: divides positive logits, and multiplies all others. 1 changes no logit.
    pub repeat: f32,
    /// The frequency penalty, subtracted from a token's logit once for each occurrence.
    pub frequency: f32,
    /// The presence penalty, subtracted from the logit of each token that occurs.
    pub presence: f32,
}

impl Default for Penalties {
    fn default() -> Self {
        Self { last_n: Some(64), repeat: 1.0, frequency: 0.0, presence: 0.0 }
    }
}

pub(super) const STEP: StepFacts<Penalties> = StepFacts {
    effect: Effect::Penalizes,
    is_off: |own| {
        let Penalties { last_n, repeat, frequency, presence } = *own;
        last_n == Some(0) || (repeat, frequency, presence) == (1.0, 0.0, 0.0)
    },
    run: |own, candidates, draw| own.apply(candidates, draw.seen),
    fields: &[
        NumberField {
            slot: |own| &mut own.last_n,
            setting: Setting {
                help: "Number of last tokens that the repeat, frequency and presence penalties consider: 0 for no tokens, \
                   -1 for all tokens, which is the default for a model with its own repetition penalty",
                ..Setting::new("repeat_last_n", Range::COUNT_OR_ALL)
            },
        },
        NumberField {
            slot: |own| &mut own.repeat,
            setting: Setting {
                aliases: &["repetition_penalty"],
                flags: &["repeat-penalty", "repetition-penalty"],
                placeholder: "X",
                help: "Repetition penalty: divide the positive logits of earlier tokens by this value, and multiply the \
                   negative logits of earlier tokens; 1 changes nothing",
                model_key: Some("repetition_penalty"),
                ..Setting::new("repeat_penalty", Range::ABOVE_ZERO)
            },
        },
        NumberField {
            slot: |own| &mut own.frequency,
            setting: Setting {
                placeholder: "X",
                help: "Subtract this value from a token's logit for each earlier occurrence of the token",
                ..Setting::new("frequency_penalty", Range::NUMBER)
            },
        },
        NumberField {
            slot: |own| &mut own.presence,
            setting: Setting {
                placeholder: "X",
                help: "Subtract this value once from the logit of each token that occurred earlier",
                ..Setting::new("presence_penalty", Range::NUMBER)
            },
        },
    ],
};

impl Penalties {
    pub(super) fn apply(&self, candidates: &mut [Candidate], seen: &[u32]) {
        let window = last(seen, self.last_n);
        let most = window.iter().max().map_or(0, |&token| token as usize + 1);
        let mut counts = vec![0_u32; most];
        window.iter().for_each(|&token| counts[token as usize] += 1);
        let [repeat, frequency, presence] = [self.repeat, self.frequency, self.presence].map(f64::from);
        for candidate in candidates {
            let count = counts.get(candidate.token as usize).copied().unwrap_or(0);
            if count == 0 {
                continue;
            }
            if candidate.logit > 0.0 {
                candidate.logit /= repeat
            } else {
                candidate.logit *= repeat
            }
            candidate.logit -= f64::from(count) * frequency + presence;
        }
    }
}

/// Returns the last `n` tokens, or all tokens if `n` is `None`.
pub(super) fn last(seen: &[u32], n: Option<usize>) -> &[u32] {
    &seen[seen.len() - n.unwrap_or(seen.len()).min(seen.len())..]
}
