//! Mirostat (Basu et al., "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity", 2020): as many
//! tokens stay as keep the surprise of the text near a target.

use super::candidates::{Candidate, likely_first, softmax};

/// How surprising the text is to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Mirostat {
    /// Which of the two.
    pub version: MirostatVersion,
    /// The surprise of a token to aim at, in bits: τ.
    pub target: f32,
    /// How fast an error is made up for: η.
    pub rate: f32,
}

/// Which Mirostat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MirostatVersion {
    /// The paper's: a top-k, whose k follows from the exponent of Zipf's law that the likeliest tokens show.
    One,
    /// Tokens that are too surprising go.
    Two,
}

/// How many of the likeliest tokens the exponent is estimated from.
const LIKELIEST: usize = 100;

/// What is remembered from token to token.
#[derive(Debug, Clone)]
pub(super) struct Surprise {
    settings: Mirostat,
    /// The surprise that is allowed, in bits: μ.
    pub allowed: f64,
}

impl Surprise {
    pub fn new(settings: &Mirostat) -> Self {
        Self { settings: settings.clone(), allowed: 2.0 * f64::from(settings.target) }
    }

    /// Leaves out what is too unlikely, of a vocabulary of so many tokens.
    pub fn cut(&self, candidates: &mut Vec<Candidate>, vocabulary: usize) {
        candidates.sort_unstable_by(likely_first);
        let probabilities = softmax(candidates);
        let keep = match self.settings.version {
            MirostatVersion::One => self.top_k(&probabilities, vocabulary),
            MirostatVersion::Two => {
                let expected = |p: &&f64| -libm::log2(**p) <= self.allowed;
                probabilities.iter().take_while(expected).count()
            }
        };
        candidates.truncate(keep.max(1));
    }

    /// The k of the paper's algorithm 1, from probabilities that fall.
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
        // Where that is no number, as of a single token, it becomes 0, and one token stays.
        libm::pow(ratio, 1.0 / exponent) as usize
    }

    /// A token was chosen that had this probability among those that were left.
    pub fn observe(&mut self, probability: f64) {
        let error = -libm::log2(probability) - f64::from(self.settings.target);
        self.allowed -= f64::from(self.settings.rate) * error;
    }
}
