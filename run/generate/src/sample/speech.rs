//! The rules of Whisper's tokens, as `WhisperTimeStampLogitsProcessor` and `WhisperNoSpeechDetection` of
//! transformers apply them (`generation/logits_process.py`).

use super::candidates::{Candidate, likely_first};

/// The rules of Whisper's tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpeechRules {
    /// The first new tokens, such as language and task: for each, the likeliest of these is chosen. All other
    /// rules begin after them.
    pub begin: Vec<Vec<u32>>,
    /// The token whose probability at the first new token tells that nobody speaks.
    pub no_speech: Option<u32>,
    /// The rules of timestamps. The text has none if this is `None`.
    pub timestamps: Option<TimestampRules>,
}

/// Timestamps come in pairs and never decrease, and the text begins with one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimestampRules {
    /// The token of 0 seconds, which all other timestamps follow. The token before it turns timestamps off.
    pub zero: u32,
    /// The token that ends a text. Smaller ones are text.
    pub end: u32,
    /// The largest first timestamp, in timestamps after `zero`.
    pub max_initial: Option<u32>,
}

/// The scores of a text under [`SpeechRules`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SpeechScores {
    /// The probability that nobody speaks, from 0 to 1.
    pub no_speech: f64,
    /// The sum of the logarithms of the chosen tokens' probabilities, after the rules and before the
    /// temperature, with the token that ends the text.
    pub logprob: f64,
    /// The number of these tokens.
    pub tokens: usize,
}

/// The scores so far, and the candidates that the rules left for the next token, by ascending id.
#[derive(Debug, Clone, Default)]
pub(super) struct SpeechTally {
    pub scores: SpeechScores,
    pub remaining: Vec<Candidate>,
}

impl SpeechTally {
    /// Counts the choice of the token with the number `new` from `logits`.
    pub fn count(&mut self, rules: &SpeechRules, new: usize, logits: &[f32], token: u32) {
        let Self { scores, remaining } = self;
        let no_speech = rules.no_speech.filter(|_| new == 0).and_then(|token| logits.get(token as usize));
        if let Some(&no_speech) = no_speech {
            scores.no_speech =
                libm::exp(f64::from(no_speech) - log_sum_exp(logits.iter().map(|&x| x.into())));
        }
        if new < rules.begin.len() {
            return;
        }
        if let Ok(chosen) = remaining.binary_search_by_key(&token, |candidate| candidate.token) {
            let all = log_sum_exp(remaining.iter().map(|candidate| candidate.logit));
            scores.logprob += remaining[chosen].logit - all;
            scores.tokens += 1;
        }
    }
}

fn log_sum_exp(logits: impl Iterator<Item = f64> + Clone) -> f64 {
    let largest = logits.clone().fold(f64::NEG_INFINITY, f64::max);
    largest + libm::log(logits.map(|logit| libm::exp(logit - largest)).sum::<f64>())
}

impl SpeechRules {
    /// Whether there is any rule.
    pub(super) fn is_on(&self) -> bool {
        *self != Self::default()
    }

    /// Keeps the likeliest of the tokens with which the text begins. Returns false after these.
    pub(super) fn begins(&self, candidates: &mut Vec<Candidate>, new: usize) -> bool {
        let Some(allowed) = self.begin.get(new) else { return false };
        candidates.retain(|candidate| allowed.contains(&candidate.token));
        candidates.sort_unstable_by(likely_first);
        candidates.truncate(1);
        true
    }
}

impl TimestampRules {
    /// Removes the candidates that cannot follow `text`, the tokens after the prompt.
    pub(super) fn forbid(&self, candidates: &mut Vec<Candidate>, text: &[u32]) {
        let is_timestamp = |token: u32| token >= self.zero;
        let is_last = text.last().is_some_and(|&last| is_timestamp(last));
        let is_pair = is_last && text.len().checked_sub(2).is_none_or(|i| is_timestamp(text[i]));
        let least = text.iter().rfind(|&&token| is_timestamp(token)).map_or(self.zero, |&last| {
            // The second timestamp of a pair can repeat the first one.
            last + u32::from(!is_last || is_pair)
        });
        let most = self
            .max_initial
            .filter(|_| text.is_empty())
            .map_or(u32::MAX, |most| self.zero.saturating_add(most));
        candidates.retain(|&Candidate { token, .. }| {
            if is_timestamp(token) {
                !is_pair && (least..=most).contains(&token)
            } else {
                let is_text = token < self.end;
                token + 1 != self.zero && !text.is_empty() && !(is_text && is_last && !is_pair)
            }
        });
        let times = candidates.iter().filter(|one| is_timestamp(one.token)).map(|one| one.logit);
        let others = candidates.iter().filter(|one| !is_timestamp(one.token)).map(|one| one.logit);
        // A timestamp is due if all together are more likely than the likeliest other token.
        if log_sum_exp(times) > others.fold(f64::NEG_INFINITY, f64::max) {
            candidates.retain(|candidate| is_timestamp(candidate.token));
        }
    }
}
