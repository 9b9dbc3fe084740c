//! Rules of `generation_config.json` that forbid, force or favour tokens, in greedy decoding too. The logits
//! equal those of transformers (`generation/logits_process.py`), which apply the rules before the
//! temperature.

use super::candidates::Candidate;
use super::setting::{NumberField, Range, Setting};
use super::speech::SpeechRules;
use crate::GenerateError;

/// Rules that forbid, force or favour tokens. The field names are those of `generation_config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct LogitRules {
    /// Tokens that the sampler never chooses.
    pub suppress_tokens: Vec<u32>,
    /// Tokens that the sampler does not choose as the first new token.
    pub begin_suppress_tokens: Vec<u32>,
    /// Sequences of tokens that the text never contains. A sequence of one stop token has no effect.
    pub bad_words_ids: Vec<Vec<u32>>,
    /// Additions to the logit of the last token of a sequence, if the text ends with the tokens before it.
    pub sequence_bias: Vec<(Vec<u32>, f32)>,
    /// The number of tokens in sequences that the text contains at most once; 0 allows all sequences.
    pub no_repeat_ngram_size: usize,
    /// The length of sequences of the prompt that the answer must not contain; 0 allows all.
    pub encoder_no_repeat_ngram_size: usize,
    /// The factor by which tokens of the prompt become more likely; 1 changes no logit.
    pub encoder_repetition_penalty: f32,
    /// The number of new tokens before the sampler can choose a stop token.
    pub min_new_tokens: usize,
    /// The number of tokens of prompt and answer before the sampler can choose a stop token.
    pub min_length: usize,
    /// The second token of a text whose prompt has one token.
    pub forced_bos_token_id: Option<u32>,
    /// The tokens of which one is the last token, if the text has its largest number of tokens.
    pub forced_eos_token_id: Vec<u32>,
    /// The new tokens after which stop tokens become more likely, and the factor per further token.
    pub exponential_decay_length_penalty: Option<(usize, f32)>,
    /// Whether NaN counts as 0 and plus infinity as the largest number, instead of being an error.
    pub remove_invalid_values: bool,
    /// The rules of Whisper's tokens.
    pub speech: SpeechRules,
}

impl Default for LogitRules {
    fn default() -> Self {
        Self {
            suppress_tokens: Vec::new(),
            begin_suppress_tokens: Vec::new(),
            bad_words_ids: Vec::new(),
            sequence_bias: Vec::new(),
            no_repeat_ngram_size: 0,
            encoder_no_repeat_ngram_size: 0,
            encoder_repetition_penalty: 1.0,
            min_new_tokens: 0,
            min_length: 0,
            forced_bos_token_id: None,
            forced_eos_token_id: Vec::new(),
            exponential_decay_length_penalty: None,
            remove_invalid_values: false,
            speech: SpeechRules::default(),
        }
    }
}

pub(super) const FIELDS: &[NumberField<LogitRules>] = &[
    NumberField {
        slot: |own| &mut own.no_repeat_ngram_size,
        setting: Setting {
            help: "Number of tokens in sequences that a text contains at most once; 0 allows all sequences",
            model_key: Some("no_repeat_ngram_size"),
            ..Setting::new("no_repeat_ngram_size", Range::COUNT)
        },
    },
    NumberField {
        slot: |own| &mut own.min_new_tokens,
        setting: Setting {
            flags: &["min-new-tokens"],
            help: "Number of new tokens before the answer can end",
            model_key: Some("min_new_tokens"),
            ..Setting::new("min_tokens", Range::COUNT)
        },
    },
];

/// The bounds of the text that a sampler continues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextBounds {
    /// The number of tokens before the first new token.
    pub prompt: usize,
    /// The largest number of tokens of prompt and answer, if there is a limit.
    pub end: Option<usize>,
    /// The tokens that end the text.
    pub stop_tokens: Vec<u32>,
}

impl LogitRules {
    /// Whether the rules change no choice.
    pub(super) fn is_off(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn check(&self) -> Result<(), GenerateError> {
        let (factor, range) = (self.encoder_repetition_penalty, Range::ABOVE_ZERO);
        if range.contains(f64::from(factor)) {
            return Ok(());
        }
        let (name, found) = ("encoder_repetition_penalty", factor.to_string());
        Err(GenerateError::Setting { name, found, expected: range.expected })
    }

    /// Changes logits before the penalties for repeated tokens.
    pub(super) fn favour(&self, candidates: &mut [Candidate], seen: &[u32], text: &TextBounds) {
        for (sequence, bias) in &self.sequence_bias {
            if let Some(last) = completed(sequence, seen) {
                add(candidates, last, (*bias).into());
            }
        }
        let factor = f64::from(self.encoder_repetition_penalty);
        if factor != 1.0 {
            let prompt = seen.get(..text.prompt).unwrap_or(seen);
            for candidate in candidates.iter_mut().filter(|candidate| prompt.contains(&candidate.token)) {
                if candidate.logit > 0.0 { candidate.logit *= factor } else { candidate.logit /= factor }
            }
        }
    }

    /// Removes forbidden tokens, possibly all, and favours stop tokens in a long text. Only lists of
    /// suppressed tokens forbid a forced token, as in transformers.
    pub(super) fn forbid(&self, candidates: &mut Vec<Candidate>, seen: &[u32], text: &TextBounds) {
        let is_end = |token: u32| text.stop_tokens.contains(&token);
        if self.speech.begins(candidates, seen.len().saturating_sub(text.prompt)) {
            return;
        }
        let begin = text.prompt + self.speech.begin.len();
        let new = seen.len().saturating_sub(begin);
        let mut banned = self.suppress_tokens.clone();
        let is_short = text.prompt <= 1 && self.forced_bos_token_id.is_some();
        if seen.len() == begin + usize::from(is_short) {
            banned.extend(&self.begin_suppress_tokens);
        }
        if self.forced(seen, text).is_empty() {
            banned.extend(repeated(self.no_repeat_ngram_size, seen, seen));
            let prompt = seen.get(..text.prompt).unwrap_or(seen);
            banned.extend(repeated(self.encoder_no_repeat_ngram_size, prompt, seen));
            for sequence in &self.bad_words_ids {
                let ends = matches!(sequence[..], [only] if is_end(only));
                banned.extend(completed(sequence, seen).filter(|_| !ends));
            }
            if seen.len() < self.min_length || new < self.min_new_tokens {
                banned.extend(&text.stop_tokens);
            }
        }
        banned.sort_unstable();
        candidates.retain(|candidate| banned.binary_search(&candidate.token).is_err());
        if let Some(timestamps) = &self.speech.timestamps {
            timestamps.forbid(candidates, seen.get(begin..).unwrap_or_default());
        }
        if let Some((start, factor)) = self.exponential_decay_length_penalty
            && new > start
        {
            let power = i32::try_from(new - start).unwrap_or(i32::MAX);
            let growth = f64::from(factor).powi(power) - 1.0;
            for candidate in candidates.iter_mut().filter(|candidate| is_end(candidate.token)) {
                candidate.logit += candidate.logit.abs() * growth;
            }
        }
    }

    /// Returns the tokens of which the sampler must choose one, or an empty list if no rule forces a token.
    pub(super) fn forced(&self, seen: &[u32], text: &TextBounds) -> Vec<u32> {
        if text.end == Some(seen.len() + 1) && !self.forced_eos_token_id.is_empty() {
            return self.forced_eos_token_id.clone();
        }
        self.forced_bos_token_id.filter(|_| seen.len() == 1).into_iter().collect()
    }
}

/// Returns the last token of a sequence, if a text ends with all other tokens of the sequence.
fn completed(sequence: &[u32], seen: &[u32]) -> Option<u32> {
    let (last, before) = sequence.split_last()?;
    seen.ends_with(before).then_some(*last)
}

/// Returns the tokens that would repeat a sequence of `size` tokens in `known` at the end of `seen`.
fn repeated<'a>(size: usize, known: &'a [u32], seen: &'a [u32]) -> impl Iterator<Item = u32> {
    let before = size.checked_sub(1).filter(|&before| before <= seen.len());
    let end = before.map(|before| &seen[seen.len() - before..]);
    let windows = end.into_iter().flat_map(move |end| known.windows(size).map(move |window| (window, end)));
    windows.filter(move |(window, end)| window[..size - 1] == **end).map(move |(window, _)| window[size - 1])
}

fn add(candidates: &mut [Candidate], token: u32, bias: f64) {
    // The candidates are in the order of their ids until a sampling step sorts the candidates.
    if let Ok(at) = candidates.binary_search_by_key(&token, |candidate| candidate.token) {
        candidates[at].logit += bias;
    }
}
