//! Mirostat keeps as many tokens as needed to hold the surprise of the text near a target (Basu et
//! al., "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity", 2020).

use super::candidates::{Candidate, likely_first, softmax};

/// The settings of Mirostat, which controls how surprising the text is.
#[derive(Debug, Clone, PartialEq)]
pub struct Mirostat {
    /// Selects version 1 or 2 of the Mirostat algorithm.
    pub version: MirostatVersion,
    /// The target surprise of a token in bits, which the Mirostat paper calls τ.
    pub target: f32,
    /// The learning rate, which sets how fast Mirostat corrects the error of the surprise. The
    /// Mirostat paper calls the rate η.
    pub rate: f32,
}

/// The version of the Mirostat algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MirostatVersion {
    /// Version 1, which is the algorithm of the Mirostat paper. The sampler estimates the exponent
    /// of Zipf's law from the most likely tokens, computes k from this exponent, and keeps the k
    /// most likely tokens.
    One,
    /// Version 2, which is simpler than the algorithm of the Mirostat paper. The sampler removes
    /// tokens whose surprise exceeds a limit.
    Two,
}

/// The number of most likely tokens from which the sampler estimates the exponent of Zipf's law.
const LIKELIEST: usize = 100;

/// The state that Mirostat carries from token to token.
#[derive(Debug, Clone)]
pub(super) struct Surprise {
    settings: Mirostat,
    /// The largest surprise, in bits, that Mirostat allows for a token. The Mirostat paper calls
    /// this limit μ.
    pub allowed: f64,
}

impl Surprise {
    pub fn new(settings: &Mirostat) -> Self {
        Self { settings: settings.clone(), allowed: 2.0 * f64::from(settings.target) }
    }

    /// Removes tokens whose surprise is too large. `vocabulary` is the size of the vocabulary.
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

    /// Computes the number k of most likely tokens that version 1 of Mirostat keeps (algorithm 1 of
    /// the Mirostat paper). The candidates' probabilities must be in descending order.
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

    /// Updates Mirostat's state with the probability of the chosen token among the remaining
    /// tokens.
    pub fn observe(&mut self, probability: f64) {
        let error = -libm::log2(probability) - f64::from(self.settings.target);
        self.allowed -= f64::from(self.settings.rate) * error;
    }
}
