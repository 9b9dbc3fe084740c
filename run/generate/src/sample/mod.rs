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
mod rules;
#[cfg(test)]
mod tests;
mod xtc;

pub use dry::{Breakers, Dry};
pub use mirostat::{Mirostat, MirostatVersion};
pub use penalties::Penalties;
pub use rules::{LogitRules, TextBounds};
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
    /// The sampler keeps the most likely tokens up to this fraction of the entropy of the 100 most
    /// likely tokens; 0 keeps all tokens.
    pub top_h: f32,
    /// The sampler keeps tokens with at least this probability; 0 keeps all tokens.
    pub epsilon_cutoff: f32,
    /// The sampler keeps tokens with at least this probability, or with less probability if the
    /// next token is hard to predict; 0 keeps all tokens.
    pub eta_cutoff: f32,
    /// Rules that forbid, force or favour tokens. The sampler applies the rules with every order of
    /// the sampling steps.
    pub rules: LogitRules,
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
            top_h: 0.0,
            epsilon_cutoff: 0.0,
            eta_cutoff: 0.0,
            rules: LogitRules::default(),
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
    /// The sampling step that [`Sampling::top_h`] configures.
    TopH,
    /// The sampling step that [`Sampling::epsilon_cutoff`] configures.
    EpsilonCutoff,
    /// The sampling step that [`Sampling::eta_cutoff`] configures.
    EtaCutoff,
    /// The sampling step that [`Sampling::xtc`] configures.
    Xtc,
    /// The sampling step that [`Sampling::temperature`] configures.
    Temperature,
}

impl SamplingStep {
    /// All sampling steps, in llama.cpp's default order. The steps that llama.cpp lacks come after
    /// `min_p`.
    pub const ORDER: [Self; 12] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::TypicalP,
        Self::TopP,
        Self::MinP,
        Self::TopH,
        Self::EpsilonCutoff,
        Self::EtaCutoff,
        Self::Xtc,
        Self::Temperature,
    ];

    /// All sampling steps, in the order of Hugging Face transformers. The steps that transformers
    /// lacks come after the penalties or at the end.
    pub const TRANSFORMERS: [Self; 12] = [
        Self::Penalties,
        Self::Dry,
        Self::Temperature,
        Self::TopH,
        Self::TopK,
        Self::TopP,
        Self::MinP,
        Self::TypicalP,
        Self::EpsilonCutoff,
        Self::EtaCutoff,
        Self::TopNSigma,
        Self::Xtc,
    ];

    /// Returns the name of the sampling step in llama.cpp, or in transformers if llama.cpp lacks the
    /// step.
    pub fn word(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::Dry => "dry",
            Self::TopNSigma => "top_n_sigma",
            Self::TopK => "top_k",
            Self::TypicalP => "typ_p",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::TopH => "top_h",
            Self::EpsilonCutoff => "epsilon_cutoff",
            Self::EtaCutoff => "eta_cutoff",
            Self::Xtc => "xtc",
            Self::Temperature => "temperature",
        }
    }
}

impl SamplingStep {
    /// Changes or removes the candidates for the next token.
    fn run(
        self,
        sampling: &Sampling,
        candidates: &mut Vec<Candidate>,
        seen: &[u32],
        random: &mut ChaCha8Rng,
    ) {
        match self {
            Self::Penalties if !sampling.penalties.is_off() => sampling.penalties.apply(candidates, seen),
            Self::Dry if !sampling.dry.is_off() => sampling.dry.apply(candidates, seen),
            Self::TopNSigma if sampling.top_n_sigma > 0.0 => {
                cuts::keep_top_n_sigma(candidates, sampling.top_n_sigma);
            }
            Self::TopK => cuts::keep_top_k(candidates, sampling.top_k),
            Self::TypicalP if sampling.typical_p < 1.0 => cuts::keep_typical(candidates, sampling.typical_p),
            Self::TopP if sampling.top_p < 1.0 => cuts::keep_top_p(candidates, sampling.top_p),
            Self::MinP if sampling.min_p > 0.0 => cuts::keep_min_p(candidates, sampling.min_p),
            Self::TopH if sampling.top_h > 0.0 => cuts::keep_top_h(candidates, sampling.top_h),
            Self::EpsilonCutoff if sampling.epsilon_cutoff > 0.0 => {
                cuts::keep_probable(candidates, sampling.epsilon_cutoff.into());
            }
            Self::EtaCutoff if sampling.eta_cutoff > 0.0 => cuts::keep_eta(candidates, sampling.eta_cutoff),
            Self::Xtc if !sampling.xtc.is_off() => sampling.xtc.cut(candidates, || fraction(random)),
            Self::Temperature => heat(candidates, sampling.temperature),
            _ => {}
        }
    }
}

impl Sampling {
    /// Whether the settings always choose the most likely token. If the most likely token is always
    /// chosen, the compiled program chooses the token, and the host needs no logits.
    pub(crate) fn takes_the_likeliest(&self) -> bool {
        if self.temperature != 0.0 || !self.rules.is_off() {
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
        let Self { penalties, dry, xtc, rules, .. } = self;
        let factor = rules.encoder_repetition_penalty;
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
            ("top_h", self.top_h, share(self.top_h), SHARE),
            ("epsilon_cutoff", self.epsilon_cutoff, share(self.epsilon_cutoff), SHARE),
            ("eta_cutoff", self.eta_cutoff, share(self.eta_cutoff), SHARE),
            ("rules.encoder_repetition_penalty", factor, above_zero(factor), ABOVE_ZERO),
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
    text: TextBounds,
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
            text: TextBounds::default(),
        })
    }

    /// Sets the bounds of the text, which [`Sampling::rules`] need. By default, all tokens are new,
    /// and the text has no limit and no stop tokens.
    pub fn begin(&mut self, text: TextBounds) {
        self.text = text;
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

    /// Returns the tokens from which the sampler would draw, and their probabilities, without
    /// drawing a token.
    ///
    /// # Errors
    /// Returns the same errors as [`choose`](Self::choose).
    pub fn probabilities(&self, seen: &[u32], logits: &[f32]) -> Result<Vec<(u32, f64)>, GenerateError> {
        let mut candidates = self.clone().candidates(seen, logits, |_| true)?;
        candidates.sort_unstable_by_key(|candidate| candidate.token);
        Ok(candidates.iter().map(|candidate| candidate.token).zip(softmax(&candidates)).collect())
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
        let candidates = self.candidates(seen, logits, allowed)?;
        let (token, probability) = self.draw(candidates);
        if let Some(surprise) = &mut self.surprise {
            surprise.observe(probability);
        }
        Ok(token)
    }

    /// Returns the tokens that remain after all sampling steps.
    fn candidates(
        &mut self,
        seen: &[u32],
        logits: &[f32],
        allowed: impl Fn(u32) -> bool,
    ) -> Result<Vec<Candidate>, GenerateError> {
        let step = self.step;
        self.step += 1;
        let repaired: Vec<f32>;
        let mut logits = logits;
        if self.sampling.rules.remove_invalid_values {
            let repair = |&logit: &f32| if logit.is_nan() { 0.0 } else { logit.min(f32::MAX) };
            repaired = logits.iter().map(repair).collect();
            logits = &repaired;
        }
        if let Some(token) = logits.iter().position(|&logit| logit.is_nan() || logit == f32::INFINITY) {
            return Err(GenerateError::Logit { step, token, found: logits[token] });
        }
        let finite = logits.iter().filter(|&&logit| logit > f32::NEG_INFINITY).count();
        if finite == 0 {
            return Err(GenerateError::NoCandidate { step, count: logits.len() });
        }
        let candidate = |(token, &logit): (u32, &f32)| Candidate { token, logit: logit.into() };
        let tokens = (0..).zip(logits).filter(|&(_, &logit)| logit > f32::NEG_INFINITY);
        let tokens = tokens.filter(|&(token, _)| allowed(token)).map(candidate);
        if self.sampling.takes_the_likeliest() {
            // If several tokens have the largest logit, the token with the lowest id wins, as in
            // `torch.argmax`.
            let best = tokens.reduce(|best, next| if next.logit > best.logit { next } else { best });
            return Ok(vec![best.ok_or(GenerateError::NothingAllowed { step })?]);
        }
        let mut candidates: Vec<_> = tokens.collect();
        if candidates.is_empty() {
            return Err(GenerateError::NothingAllowed { step });
        }
        let is_constrained = candidates.len() < finite;
        let forced = self.sampling.rules.forced(seen, &self.text).into_iter();
        let forced = forced.filter(|&token| (token as usize) < logits.len() && allowed(token));
        let forced: Vec<_> = forced.map(|token| Candidate { token, logit: 0.0 }).collect();
        if !forced.is_empty() {
            candidates = forced;
        }
        // A constraint that allows only forbidden tokens wins over the rules.
        match self.narrow(&mut candidates, seen, logits.len()) || is_constrained {
            true => Ok(candidates),
            false => Err(GenerateError::NothingLeft { step }),
        }
    }

    /// Runs all sampling steps, but does not draw a token yet. If the rules forbid all candidates,
    /// the function keeps the candidates and returns false.
    fn narrow(&mut self, candidates: &mut Vec<Candidate>, seen: &[u32], vocabulary: usize) -> bool {
        let Self { sampling, random, text, .. } = self;
        let rules = (!sampling.rules.is_off()).then_some(&sampling.rules);
        if let Some(rules) = rules {
            rules.favour(candidates, seen, text);
        }
        let forbid = |candidates: &mut Vec<Candidate>| {
            let Some(rules) = rules else { return true };
            let before = candidates.clone();
            rules.forbid(candidates, seen, text);
            let is_left = !candidates.is_empty();
            if !is_left {
                *candidates = before;
            }
            is_left
        };
        // The penalties come before the rules, and all other steps come after the rules.
        let is_penalty = |step: &SamplingStep| matches!(step, SamplingStep::Penalties | SamplingStep::Dry);
        let steps = sampling.steps();
        let (penalties, others) = steps.split_at(steps.iter().take_while(|step| is_penalty(step)).count());
        for step in penalties {
            step.run(sampling, candidates, seen, random);
        }
        let is_left = forbid(candidates);
        for step in others {
            step.run(sampling, candidates, seen, random);
        }
        if let Some(surprise) = &self.surprise {
            surprise.cut(candidates, vocabulary);
        }
        is_left
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
