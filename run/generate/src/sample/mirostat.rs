//! Mirostat keeps as many tokens as needed to hold the surprise of the text near a target (Basu et
//! al., "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity", 2020).

use super::candidates::{Candidate, likely_first, softmax};
use super::setting::{NumberField, Range, Setting, Slot};

/// The settings of Mirostat, which controls how surprising the text is.
#[derive(Debug, Clone, PartialEq)]
pub struct Mirostat {
    /// Selects version 1 or 2 of the Mirostat algorithm; `None` turns Mirostat off.
    pub version: Option<MirostatVersion>,
    /// The target surprise of a token in bits, which the Mirostat paper calls τ.
    pub target: f32,
    /// The learning rate (η in the paper), which sets how fast Mirostat corrects the error of the surprise.
    pub rate: f32,
}

impl Default for Mirostat {
    fn default() -> Self {
        Self { version: None, target: 5.0, rate: 0.1 }
    }
}

pub(super) const FIELDS: &[NumberField<Mirostat>] = &[
    NumberField {
        slot: |own| &mut own.version,
        setting: Setting {
            placeholder: "0|1|2",
            help: "Sample with Mirostat (1) or Mirostat 2.0 (2), which replaces all other sampling steps except the \
               temperature; 0 turns Mirostat off",
            ..Setting::new("mirostat", Range::whole(0.0, 2.0, "0, 1 or 2"))
        },
    },
    NumberField {
        slot: |own| &mut own.rate,
        setting: Setting {
            flags: &["mirostat-lr"],
            placeholder: "X",
            help: "Learning rate of Mirostat (eta)",
            ..Setting::new("mirostat_eta", Range::FROM_ZERO)
        },
    },
    NumberField {
        slot: |own| &mut own.target,
        setting: Setting {
            flags: &["mirostat-ent"],
            placeholder: "BITS",
            help: "Target surprise of Mirostat in bits (tau)",
            ..Setting::new("mirostat_tau", Range::FROM_ZERO)
        },
    },
];

/// The version of the Mirostat algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MirostatVersion {
    /// The paper's version 1: estimates the exponent of Zipf's law, and keeps the k most likely tokens.
    One,
    /// The simpler version 2, which removes tokens whose surprise exceeds a limit.
    Two,
}

impl Slot for Option<MirostatVersion> {
    fn get(&self) -> f64 {
        self.map_or(0.0, |version| if version == MirostatVersion::One { 1.0 } else { 2.0 })
    }

    fn set(&mut self, number: f64) {
        let version = if number == 1.0 { MirostatVersion::One } else { MirostatVersion::Two };
        *self = (number != 0.0).then_some(version);
    }
}

/// The number of most likely tokens from which the sampler estimates the exponent of Zipf's law.
const LIKELIEST: usize = 100;

/// The state that Mirostat carries from token to token.
#[derive(Debug, Clone)]
pub(super) struct Surprise {
    version: MirostatVersion,
    target: f64,
    rate: f64,
    /// The largest surprise, in bits, that Mirostat allows for a token (μ in the paper).
    pub allowed: f64,
}

impl Surprise {
    /// Returns `None` if Mirostat is off.
    pub fn new(settings: &Mirostat) -> Option<Self> {
        let (target, rate) = (f64::from(settings.target), f64::from(settings.rate));
        Some(Self { version: settings.version?, target, rate, allowed: 2.0 * target })
    }

    /// Removes tokens whose surprise is too large. `vocabulary` is the size of the vocabulary.
    pub fn cut(&self, candidates: &mut Vec<Candidate>, vocabulary: usize) {
        candidates.sort_unstable_by(likely_first);
        let probabilities = softmax(candidates);
        let keep = match self.version {
            MirostatVersion::One => self.top_k(&probabilities, vocabulary),
            MirostatVersion::Two => {
                let expected = |p: &&f64| -libm::log2(**p) <= self.allowed;
                probabilities.iter().take_while(expected).count()
            }
        };
        candidates.truncate(keep.max(1));
    }

    /// The k of version 1 (algorithm 1 of the paper), from probabilities in descending order.
    fn top_k(&self, probabilities: &[f64], vocabulary: usize) -> usize {
        let (mut product, mut square) = (0.0, 0.0);
        for (i, pair) in probabilities.windows(2).take(LIKELIEST - 1).enumerate() {
            let t = libm::log((i + 2) as f64 / (i + 1) as f64);
            product += t * libm::log(pair[0] / pair[1]);
            square += t * t;
        }
        let exponent = product / square;
        let epsilon = exponent - 1.0;
        let ratio = epsilon * libm::pow(2.0, self.allowed) / (1.0 - libm::pow(vocabulary as f64, -epsilon));
        // For a single token, the result is NaN. The cast converts NaN to 0, and one token remains.
        libm::pow(ratio, 1.0 / exponent) as usize
    }

    /// Updates Mirostat's state with the probability of the chosen token among the remaining tokens.
    pub fn observe(&mut self, probability: f64) {
        let error = -libm::log2(probability) - self.target;
        self.allowed -= self.rate * error;
    }
}
