//! The sampler, which chooses the next token.
//!
//! Each sampling step has a separate source file. A sampling step gives the same results as Hugging
//! Face transformers (`generation/logits_process.py`). If Hugging Face transformers lacks a
//! sampling step, the step gives the same results as llama.cpp. By default, the sampler runs the
//! steps in the order of llama.cpp ([`SamplingStep::ORDER`]): penalties, then steps that remove
//! tokens, then the temperature. The temperature comes last, because then the temperature does not
//! affect which tokens are removed. Hugging Face transformers applies the temperature before it
//! removes tokens; [`Sampling::order`] can set this order. After all steps, the sampler draws one
//! token.

mod candidates;
mod cuts;
mod dry;
mod mirostat;
mod penalties;
#[cfg(test)]
mod tests;
mod xtc;

pub use dry::{Breakers, Dry};
pub use mirostat::{Mirostat, MirostatVersion};
pub use penalties::Penalties;
pub use xtc::Xtc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::GenerateError;
use candidates::{Candidate, likely_first, log_softmax, softmax};
use mirostat::Surprise;

/// The settings of the sampler. By default, the sampler is greedy and always takes the most likely token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// The temperature by which the sampler divides logits. With the temperature 0, the sampler
    /// takes the most likely of the remaining tokens.
    pub temperature: f32,
    /// The sampler keeps this number of most likely tokens; 0 keeps all tokens.
    pub top_k: usize,
    /// The sampler keeps the most likely tokens up to this total probability; 1 keeps all tokens.
    pub top_p: f32,
    /// The sampler keeps tokens with at least this fraction of the largest probability; 0 keeps all
    /// tokens.
    pub min_p: f32,
    /// The sampler keeps the tokens whose surprise is nearest to the average, up to this total
    /// probability; 1 keeps all tokens.
    pub typical_p: f32,
    /// The sampler keeps tokens whose logits are at most this many standard deviations below the
    /// largest logit. Values of 0 or less keep all tokens.
    pub top_n_sigma: f32,
    /// Penalties for tokens that the text already contains.
    pub penalties: Penalties,
    /// Penalties for tokens that would continue a repetition.
    pub dry: Dry,
    /// The settings of XTC, which sometimes removes the most likely tokens.
    pub xtc: Xtc,
    /// The settings of Mirostat, which keeps the text near a target surprise. As in llama.cpp,
    /// Mirostat replaces all other sampling steps except the temperature.
    pub mirostat: Option<Mirostat>,
    /// The sampling steps, in the order in which the sampler runs these steps. The sampler skips
    /// each sampling step that is not in this list.
    pub order: Vec<SamplingStep>,
    /// The seed of the random numbers with which the sampler draws tokens. With the same seed, the
    /// sampler draws the same tokens on every machine.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            top_n_sigma: 0.0,
            penalties: Penalties::default(),
            dry: Dry::default(),
            xtc: Xtc::default(),
            mirostat: None,
            order: SamplingStep::ORDER.to_vec(),
            seed: 0,
        }
    }
}

/// A sampling step, which changes logits or removes tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SamplingStep {
    /// The sampling step that [`Sampling::penalties`] configures.
    Penalties,
    /// The sampling step that [`Sampling::dry`] configures.
    Dry,
    /// The sampling step that [`Sampling::top_n_sigma`] configures.
    TopNSigma,
    /// The sampling step that [`Sampling::top_k`] configures.
    TopK,
    /// The sampling step that [`Sampling::typical_p`] configures.
    TypicalP,
    /// The sampling step that [`Sampling::top_p`] configures.
    TopP,
    /// The sampling step that [`Sampling::min_p`] configures.
    MinP,
    /// The sampling step that [`Sampling::xtc`] configures.
    Xtc,
    /// The sampling step that [`Sampling::temperature`] configures.
    Temperature,
}

impl SamplingStep {
    /// All sampling steps, in llama.cpp's default order.
    pub const ORDER: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::TypicalP,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
        Self::Temperature,
    ];

    /// Returns the name of the sampling step in llama.cpp.
    pub fn word(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::Dry => "dry",
            Self::TopNSigma => "top_n_sigma",
            Self::TopK => "top_k",
            Self::TypicalP => "typ_p",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::Xtc => "xtc",
            Self::Temperature => "temperature",
        }
    }
}

impl Sampling {
    /// Whether the settings always choose the most likely token. If the most likely token is always
    /// chosen, the compiled program chooses the token, and the host needs no logits.
    pub(crate) fn takes_the_likeliest(&self) -> bool {
        if self.temperature != 0.0 {
            return false;
        }
        let keeps_the_likeliest = |step: &SamplingStep| match step {
            SamplingStep::Penalties => self.penalties.is_off(),
            SamplingStep::Dry => self.dry.is_off(),
            SamplingStep::TypicalP => self.typical_p >= 1.0,
            SamplingStep::Xtc => self.xtc.is_off(),
            _ => true,
        };
        let order = self.steps();
        order.contains(&SamplingStep::Temperature) && order.iter().all(keeps_the_likeliest)
    }

    /// Returns the sampling steps that the sampler runs.
    fn steps(&self) -> &[SamplingStep] {
        match self.mirostat {
            Some(_) => &[SamplingStep::Temperature],
            None => &self.order,
        }
    }

    /// Checks that each sampling setting is in the setting's range.
    fn check(&self) -> Result<(), GenerateError> {
        let Self { penalties, dry, xtc, .. } = self;
        let share = |x: f32| (0.0..=1.0).contains(&x);
        let from_zero = |x: f32| x >= 0.0 && x.is_finite();
        let above_zero = |x: f32| x > 0.0 && x.is_finite();
        const SHARE: &str = "a number from 0 to 1";
        const FROM_ZERO: &str = "a number from 0";
        const ABOVE_ZERO: &str = "a number above 0";
        const NUMBER: &str = "a finite number";
        let mirostat = self.mirostat.iter();
        let mut settings = vec![
            ("temperature", self.temperature, from_zero(self.temperature), FROM_ZERO),
            ("top_p", self.top_p, share(self.top_p), SHARE),
            ("min_p", self.min_p, share(self.min_p), SHARE),
            ("typical_p", self.typical_p, share(self.typical_p), SHARE),
            ("top_n_sigma", self.top_n_sigma, self.top_n_sigma.is_finite(), NUMBER),
            ("penalties.repeat", penalties.repeat, above_zero(penalties.repeat), ABOVE_ZERO),
            ("penalties.frequency", penalties.frequency, penalties.frequency.is_finite(), NUMBER),
            ("penalties.presence", penalties.presence, penalties.presence.is_finite(), NUMBER),
            ("dry.multiplier", dry.multiplier, from_zero(dry.multiplier), FROM_ZERO),
            ("dry.base", dry.base, from_zero(dry.base), FROM_ZERO),
            ("xtc.probability", xtc.probability, share(xtc.probability), SHARE),
            ("xtc.threshold", xtc.threshold, share(xtc.threshold), SHARE),
        ];
        for Mirostat { target, rate, .. } in mirostat {
            settings.push(("mirostat.target", *target, from_zero(*target), FROM_ZERO));
            settings.push(("mirostat.rate", *rate, from_zero(*rate), FROM_ZERO));
        }
        match settings.into_iter().find(|&(_, _, is_one, _)| !is_one) {
            Some((name, found, _, expected)) => {
                Err(GenerateError::Setting { name, found: found.to_string(), expected })
            }
            None => Ok(()),
        }
    }
}

/// Chooses tokens, one after another. The sampler contains the random number generator and the state of
/// Mirostat.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    random: ChaCha8Rng,
    surprise: Option<Surprise>,
    step: u64,
}

impl Sampler {
    /// Creates a sampler with the given settings.
    ///
    /// # Errors
    /// Returns an error if a setting is out of its range.
    pub fn new(sampling: &Sampling) -> Result<Self, GenerateError> {
        sampling.check()?;
        Ok(Sampler {
            sampling: sampling.clone(),
            random: ChaCha8Rng::seed_from_u64(sampling.seed),
            surprise: sampling.mirostat.as_ref().map(Surprise::new),
            step: 0,
        })
    }

    /// Counts a token that the compiled program chose. The sampler's error messages contain the
    /// number of the token.
    pub(crate) fn pass(&mut self) {
        self.step += 1;
    }

    /// Chooses a token from the logits of one position. `seen` contains the tokens before the
    /// position of the chosen token.
    ///
    /// # Errors
    /// Returns an error if a logit is NaN or plus infinity, or if all logits are minus infinity.
    pub fn choose(&mut self, seen: &[u32], logits: &[f32]) -> Result<u32, GenerateError> {
        self.choose_among(seen, logits, |_| true)
    }

    /// Chooses a token like [`choose`](Self::choose), among the tokens for which `allowed` returns
    /// true. Before the first sampling step, the sampler removes all tokens for which `allowed`
    /// returns false.
    ///
    /// # Errors
    /// Returns an error if a logit is NaN or plus infinity, or if all allowed logits are minus infinity.
    pub fn choose_among(
        &mut self,
        seen: &[u32],
        logits: &[f32],
        allowed: impl Fn(u32) -> bool,
    ) -> Result<u32, GenerateError> {
        let step = self.step;
        self.step += 1;
        if let Some(token) = logits.iter().position(|&logit| logit.is_nan() || logit == f32::INFINITY) {
            return Err(GenerateError::Logit { step, token, found: logits[token] });
        }
        if logits.iter().all(|&logit| logit == f32::NEG_INFINITY) {
            return Err(GenerateError::NoCandidate { step, count: logits.len() });
        }
        let tokens = (0..).zip(logits).filter(|&(_, &logit)| logit > f32::NEG_INFINITY);
        let tokens = tokens.filter(|&(token, _)| allowed(token));
        if self.sampling.takes_the_likeliest() {
            // If several tokens have the largest logit, the token with the lowest id wins, as in
            // `torch.argmax`.
            let best = tokens.reduce(|best, next| if next.1 > best.1 { next } else { best });
            return best.map(|(token, _)| token).ok_or(GenerateError::NothingAllowed { step });
        }
        let candidate = |(token, &logit): (u32, &f32)| Candidate { token, logit: logit.into() };
        let mut candidates: Vec<_> = tokens.map(candidate).collect();
        if candidates.is_empty() {
            return Err(GenerateError::NothingAllowed { step });
        }
        self.narrow(&mut candidates, seen, logits.len());
        let (token, probability) = self.draw(candidates);
        if let Some(surprise) = &mut self.surprise {
            surprise.observe(probability);
        }
        Ok(token)
    }

    /// Runs all sampling steps, but does not draw a token yet.
    fn narrow(&mut self, candidates: &mut Vec<Candidate>, seen: &[u32], vocabulary: usize) {
        let Self { sampling, random, .. } = self;
        for step in sampling.steps() {
            match step {
                SamplingStep::Penalties if !sampling.penalties.is_off() => {
                    sampling.penalties.apply(candidates, seen);
                }
                SamplingStep::Dry if !sampling.dry.is_off() => sampling.dry.apply(candidates, seen),
                SamplingStep::TopNSigma if sampling.top_n_sigma > 0.0 => {
                    cuts::keep_top_n_sigma(candidates, sampling.top_n_sigma);
                }
                SamplingStep::TopK => cuts::keep_top_k(candidates, sampling.top_k),
                SamplingStep::TypicalP if sampling.typical_p < 1.0 => {
                    cuts::keep_typical(candidates, sampling.typical_p);
                }
                SamplingStep::TopP if sampling.top_p < 1.0 => cuts::keep_top_p(candidates, sampling.top_p),
                SamplingStep::MinP if sampling.min_p > 0.0 => cuts::keep_min_p(candidates, sampling.min_p),
                SamplingStep::Xtc if !sampling.xtc.is_off() => {
                    sampling.xtc.cut(candidates, || fraction(random));
                }
                SamplingStep::Temperature => heat(candidates, sampling.temperature),
                _ => {}
            }
        }
        if let Some(surprise) = &self.surprise {
            surprise.cut(candidates, vocabulary);
        }
    }

    /// Draws a token from the remaining candidates. Returns the id and the probability of the token.
    fn draw(&mut self, mut candidates: Vec<Candidate>) -> (u32, f64) {
        candidates.sort_unstable_by_key(|candidate| candidate.token);
        let random = fraction(&mut self.random);
        let mut cumulative = 0.0;
        let probabilities = softmax(&candidates);
        let chosen = probabilities.iter().position(|probability| {
            cumulative += probability;
            random < cumulative
        });
        // Rounding can make the sum smaller than 1. The function then returns the last token.
        let chosen = chosen.unwrap_or(candidates.len() - 1);
        (candidates[chosen].token, probabilities[chosen])
    }
}

/// Returns a random number in [0, 1) with 53 bits.
fn fraction(random: &mut ChaCha8Rng) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// Divides the logits by the temperature. With the temperature 0, only the token with the largest
/// logit remains. If several tokens have the largest logit, the token with the lowest id remains.
fn heat(candidates: &mut Vec<Candidate>, temperature: f32) {
    if temperature > 0.0 {
        candidates.iter_mut().for_each(|candidate| candidate.logit /= f64::from(temperature));
    } else if let Some(best) = candidates.iter().copied().min_by(likely_first) {
        *candidates = vec![best];
    }
}

/// A token, and the logarithm of its probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Logprob {
    /// The token's id in the vocabulary.
    pub token: u32,
    /// The natural logarithm of the token's probability.
    pub logprob: f64,
}

/// The chosen token and the most likely tokens at one position. The probabilities are computed from
/// the model's own logits, before [`Sampling`] or a constraint changes these logits. OpenAI's
/// `logprobs` and llama.cpp's `n_probs` are also computed from the model's own logits.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The token that the sampler chose at this position.
    pub chosen: Logprob,
    /// The most likely tokens at this position, in descending order of their probabilities.
    pub top: Vec<Logprob>,
}

impl TokenLogprobs {
    /// Finds the `count` most likely tokens in the logits of one position, and adds the chosen
    /// token.
    pub(crate) fn of(logits: &[f32], chosen: u32, count: usize) -> Self {
        let candidate = |(token, &logit): (u32, &f32)| Candidate { token, logit: logit.into() };
        let candidates: Vec<_> = (0..).zip(logits).map(candidate).collect();
        let logprobs = log_softmax(&candidates);
        let of = |token: u32| Logprob { token, logprob: logprobs[token as usize] };
        let mut likely: Vec<&Candidate> = candidates.iter().collect();
        let count = count.min(likely.len());
        if count < likely.len() {
            likely.select_nth_unstable_by(count, |a, b| likely_first(a, b));
            likely.truncate(count);
        }
        likely.sort_unstable_by(|a, b| likely_first(a, b));
        Self { chosen: of(chosen), top: likely.into_iter().map(|candidate| of(candidate.token)).collect() }
    }
}
