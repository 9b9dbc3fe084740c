//! DRY ("don't repeat yourself") penalizes tokens that continue a repetition (p-e-w, text-generation-webui,
//! 2024). The results equal llama.cpp's.

use std::collections::BTreeMap;

use super::candidates::Candidate;
use super::penalties::last;
use super::setting::{Effect, NumberField, Range, Setting, StepFacts};
use crate::{GenerateError, Tokenizer};

/// The settings of DRY. Let n be the length of the longest suffix of the text that also occurs earlier in the
/// text, followed by the token t. DRY reduces the logit of t by `multiplier` · `base`^(n − `allowed_length`).
#[derive(Debug, Clone, PartialEq)]
pub struct Dry {
    /// The strength of the penalty; 0 turns DRY off.
    pub multiplier: f32,
    /// The factor by which each additional repeated token multiplies the penalty.
    pub base: f32,
    /// The shortest repetition that is penalized, in tokens.
    pub allowed_length: usize,
    /// The number of last tokens in which DRY searches for repetitions. With `None`, DRY searches all tokens.
    pub last_n: Option<usize>,
    /// Texts that end a repetition; DRY ignores repetitions that cross one of these texts.
    pub breakers: Breakers,
}

impl Default for Dry {
    fn default() -> Self {
        Self {
            multiplier: 0.0,
            base: 1.75,
            allowed_length: 2,
            last_n: Some(64),
            breakers: Breakers::default(),
        }
    }
}

/// Texts that end a repetition, called breakers, each as the token sequences that can represent it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Breakers {
    /// For each token that begins a breaker, the sequences of tokens that must follow this token.
    pub(super) sequences: BTreeMap<u32, Vec<Vec<u32>>>,
}

impl Breakers {
    /// The default breakers, which are the same as in llama.cpp.
    pub const USUAL: [&str; 4] = ["\n", ":", "\"", "*"];

    /// Finds tokens that contain one of `texts`, or end with its beginning, and then stores the tokens of the
    /// rest of the text. Ignores empty texts.
    pub fn new(tokenizer: &Tokenizer, texts: &[impl AsRef<str>]) -> Result<Self, GenerateError> {
        /// The largest number of tokens that must follow the first token of a breaker.
        const FOLLOW: usize = 20;
        let mut sequences: BTreeMap<u32, Vec<Vec<u32>>> = BTreeMap::new();
        let pieces = tokenizer.pieces();
        for text in texts.iter().map(AsRef::as_ref).filter(|text| !text.is_empty()) {
            for (token, piece) in pieces.iter().enumerate() {
                let mut found = |tail: Vec<u32>| {
                    let tails = sequences.entry(token as u32).or_default();
                    if !tails.contains(&tail) {
                        tails.push(tail);
                    }
                };
                if contains(piece, text.as_bytes()) {
                    found(Vec::new());
                    continue;
                }
                for (at, _) in text.char_indices().skip(1) {
                    let (head, missing) = text.split_at(at);
                    if piece.ends_with(head.as_bytes()) {
                        let mut tail = tokenizer.encode_plain(missing)?;
                        tail.truncate(FOLLOW);
                        found(tail);
                    }
                }
            }
        }
        Ok(Self { sequences })
    }

    /// Returns the number of tokens after the last breaker in the text.
    pub(super) fn free(&self, seen: &[u32]) -> usize {
        for (at, token) in seen.iter().enumerate().rev() {
            let Some(tails) = self.sequences.get(token) else { continue };
            let rest = &seen[at + 1..];
            let longest = tails.iter().filter(|tail| rest.starts_with(tail)).map(Vec::len).max();
            if let Some(length) = longest {
                return rest.len() - length;
            }
        }
        seen.len()
    }

    /// Whether the text of a token contains a complete sequence breaker.
    fn is_whole(&self, token: u32) -> bool {
        self.sequences.get(&token).is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }
}

pub(super) const STEP: StepFacts<Dry> = StepFacts {
    effect: Effect::Penalizes,
    is_off: |own| {
        let Dry { multiplier, base, last_n, .. } = *own;
        multiplier == 0.0 || base < 1.0 || last_n == Some(0)
    },
    run: |own, candidates, draw| own.apply(candidates, draw.seen),
    fields: &[
        NumberField {
            slot: |own| &mut own.multiplier,
            setting: Setting {
                placeholder: "X",
                help: "DRY penalty: subtract X · BASE^(length - allowed length) from the logit of each token that would \
                   extend a repetition of this length; 0 turns DRY off",
                ..Setting::new("dry_multiplier", Range::FROM_ZERO)
            },
        },
        NumberField {
            slot: |own| &mut own.base,
            setting: Setting {
                placeholder: "BASE",
                help: "Base of the DRY penalty, the BASE in the formula of --dry-multiplier",
                ..Setting::new("dry_base", Range::FROM_ZERO)
            },
        },
        NumberField {
            slot: |own| &mut own.allowed_length,
            setting: Setting {
                help: "Length in tokens of the shortest repetition that DRY penalizes",
                ..Setting::new("dry_allowed_length", Range::COUNT)
            },
        },
        NumberField {
            slot: |own| &mut own.last_n,
            setting: Setting {
                help: "Number of last tokens in which DRY searches for repetitions: 0 for no tokens, -1 for all tokens",
                ..Setting::new("dry_penalty_last_n", Range::COUNT_OR_ALL)
            },
        },
    ],
};

impl Dry {
    pub(super) fn apply(&self, candidates: &mut [Candidate], seen: &[u32]) {
        let window = last(seen, self.last_n);
        let free = self.breakers.free(window);
        if window.len() <= self.allowed_length || free < self.allowed_length {
            return;
        }
        let repeated = repeated(window, free, self.allowed_length);
        // The exponent is limited, so that no penalty exceeds the largest f32.
        let steepest = if self.base > 1.000_001 {
            (libm::log(f64::from(f32::MAX)) / libm::log(f64::from(self.base))).floor()
        } else {
            f64::INFINITY
        };
        for candidate in candidates {
            let Some(&length) = repeated.get(&candidate.token) else { continue };
            if self.breakers.is_whole(candidate.token) {
                continue;
            }
            let exponent = ((length - self.allowed_length) as f64).min(steepest);
            candidate.logit -= f64::from(self.multiplier) * libm::pow(f64::from(self.base), exponent);
        }
    }
}

/// Returns, for each token, the longest repetition in the last `free` tokens that it would continue, of at
/// least `least` tokens.
fn repeated(seen: &[u32], free: usize, least: usize) -> BTreeMap<u32, usize> {
    let back: Vec<u32> = seen.iter().rev().copied().collect();
    let mut longest = BTreeMap::new();
    for (at, length) in common_with_begin(&back).into_iter().enumerate().skip(1) {
        let length = length.min(free);
        if length >= least {
            let token = back[at - 1];
            let most = longest.entry(token).or_insert(0);
            *most = length.max(*most);
        }
    }
    longest
}

/// The Z-function in linear time (Gusfield, "Algorithms on Strings, Trees, and Sequences", 1997, § 1.4): the
/// longest prefix that also begins at each position.
pub(super) fn common_with_begin(list: &[u32]) -> Vec<usize> {
    let mut lengths = vec![0; list.len()];
    // The range from `left` to `right` is known to equal the beginning of the list.
    let (mut left, mut right) = (0, 0);
    for at in 1..list.len() {
        let mut length = if at < right { lengths[at - left].min(right - at) } else { 0 };
        while at + length < list.len() && list[length] == list[at + length] {
            length += 1;
        }
        if at + length > right {
            (left, right) = (at, at + length);
        }
        lengths[at] = length;
    }
    lengths
}

fn contains(piece: &[u8], text: &[u8]) -> bool {
    piece.windows(text.len()).any(|window| window == text)
}
