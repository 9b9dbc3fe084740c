//! DRY ("don't repeat yourself"): penalties for tokens that would go on repeating what the text has already said.
//!
//! The idea and its parameters are p-e-w's (text-generation-webui, 2024); what they do is what llama.cpp's sampler does.

use std::collections::BTreeMap;

use super::candidates::Candidate;
use super::penalties::last;
use crate::{GenerateError, Tokenizer};

/// A token t loses `multiplier` · `base`^(n − `allowed_length`), where the last n tokens are the longest that already
/// stand in front of a t.
#[derive(Debug, Clone, PartialEq)]
pub struct Dry {
    /// 0 changes nothing.
    pub multiplier: f32,
    /// How much worse each further token makes it.
    pub base: f32,
    /// Repetitions shorter than this cost nothing.
    pub allowed_length: usize,
    /// How many of the last tokens are looked at; `None` for all.
    pub last_n: Option<usize>,
    /// What no repetition reaches across.
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

/// Texts that a repetition does not reach across, as the tokens that may spell them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Breakers {
    /// By a token with which a breaker begins: the tokens that must follow.
    pub(super) sequences: BTreeMap<u32, Vec<Vec<u32>>>,
}

impl Breakers {
    /// llama.cpp's.
    pub const USUAL: [&str; 4] = ["\n", ":", "\"", "*"];

    /// The tokens that contain one of `texts`, or end with its begin; then what is missing must follow as the tokenizer
    /// writes it. Empty texts are ignored.
    ///
    /// # Errors
    /// If the tokenizer cannot encode what is missing.
    pub fn new(tokenizer: &Tokenizer, texts: &[impl AsRef<str>]) -> Result<Self, GenerateError> {
        /// Tokens that must follow at most.
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

    /// How many tokens stand behind the last breaker.
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

    /// Whether a token is one by itself.
    fn is_whole(&self, token: u32) -> bool {
        self.sequences.get(&token).is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }
}

impl Dry {
    /// Whether every logit stays as it is.
    pub(super) fn is_off(&self) -> bool {
        self.multiplier == 0.0 || self.base < 1.0 || self.last_n == Some(0)
    }

    pub(super) fn apply(&self, candidates: &mut [Candidate], seen: &[u32]) {
        let window = last(seen, self.last_n);
        let free = self.breakers.free(window);
        if window.len() <= self.allowed_length || free < self.allowed_length {
            return;
        }
        let repeated = repeated(window, free, self.allowed_length);
        // No penalty is more than an f32 holds.
        let steepest = match self.base > 1.000_001 {
            true => (libm::log(f64::from(f32::MAX)) / libm::log(f64::from(self.base))).floor(),
            false => f64::INFINITY,
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

/// Of each token the most of the last `free` tokens that already stand in front of it, if they are at least `least`.
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

/// Of each place how long what begins there equals what the list begins with: the Z-function (Gusfield, "Algorithms on
/// Strings, Trees, and Sequences", 1997, § 1.4), in linear time.
pub(super) fn common_with_begin(list: &[u32]) -> Vec<usize> {
    let mut lengths = vec![0; list.len()];
    // What is known to equal the begin: the last place before `right`, from `left`.
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
