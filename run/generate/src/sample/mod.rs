//! The sampler, which chooses the next token. A step, each in its own file, gives the results of Hugging Face
//! transformers (`generation/logits_process.py`), or else of llama.cpp. By default, the order is llama.cpp's
//! ([`SamplingStep::ORDER`]): penalties, then steps that remove tokens, then the temperature, which therefore
//! does not affect the removal. Hugging Face transformers applies the temperature before the removal;
//! [`Sampling::order`] can set this order. At the end, the sampler draws one token.

/// Declares the sampling steps, in llama.cpp's default order. The steps that llama.cpp lacks come after
/// `min_p`. Each line names the step, its name in llama.cpp or transformers, its file, the type of its
/// settings, and the settings that change nothing.
macro_rules! steps {
    ($($(#[$about:meta])+ $step:ident $word:literal $file:ident: $type:ty = $usual:expr;)+) => {
        $(mod $file;)+

        /// The settings of the sampler. By default, the sampler is greedy and always takes the most likely token.
        #[derive(Debug, Clone, PartialEq)]
        pub struct Sampling {
            $($(#[$about])+ pub $file: $type,)+
            /// Rules that forbid, force or favour tokens. The sampler applies the rules with every order of
            /// the sampling steps.
            pub rules: LogitRules,
            /// The settings of Mirostat, which keeps the text near a target surprise. As in llama.cpp,
            /// Mirostat replaces all other sampling steps except the temperature.
            pub mirostat: Mirostat,
            /// The sampling steps, in the order in which the sampler runs these steps. The sampler skips
            /// each sampling step that is not in this list.
            pub order: Vec<SamplingStep>,
            /// The seed of the random numbers with which the sampler draws tokens. With the same seed, the
            /// sampler draws the same tokens on every machine.
            pub seed: u64,
        }

        impl Default for Sampling {
            fn default() -> Self {
                let (rules, mirostat) = (LogitRules::default(), Mirostat::default());
                Self { $($file: $usual,)+ rules, mirostat, order: SamplingStep::ORDER.to_vec(), seed: 0 }
            }
        }

        /// A sampling step, which changes logits or removes tokens.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum SamplingStep {
            $(
                #[doc = concat!("The sampling step that [`Sampling::", stringify!($file), "`] configures.")]
                $step,
            )+
        }

        impl SamplingStep {
            /// All sampling steps, in llama.cpp's default order.
            pub const ORDER: &[Self] = &[$(Self::$step),+];

            /// Returns the name of the sampling step in llama.cpp, or in transformers if llama.cpp lacks the
            /// step.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$step => $word,)+
                }
            }

            fn effect(self) -> Effect {
                match self {
                    $(Self::$step => $file::STEP.effect,)+
                }
            }

            fn settings(self) -> Vec<&'static Setting> {
                match self {
                    $(Self::$step => $file::STEP.fields.iter().map(|field| &field.setting).collect(),)+
                }
            }

            fn is_active(self, sampling: &Sampling) -> bool {
                match self {
                    $(Self::$step => !($file::STEP.is_off)(&sampling.$file),)+
                }
            }

            fn run(self, sampling: &Sampling, candidates: &mut Vec<Candidate>, draw: &mut Draw<'_>) {
                match self {
                    $(Self::$step => ($file::STEP.run)(&sampling.$file, candidates, draw),)+
                }
            }
        }

        impl Sampling {
            /// The place of a setting's number.
            fn slot(&mut self, setting: &Setting) -> Option<&mut dyn Slot> {
                $(if let Some(field) = field($file::STEP.fields, setting) {
                    return Some((field.slot)(&mut self.$file));
                })+
                if let Some(field) = field(mirostat::FIELDS, setting) {
                    return Some((field.slot)(&mut self.mirostat));
                }
                field(rules::FIELDS, setting).map(|field| (field.slot)(&mut self.rules))
            }
        }
    };
}

steps! {
    /// Penalties for tokens that the text already contains.
    Penalties "penalties" penalties: Penalties = Penalties::default();
    /// Penalties for tokens that would continue a repetition.
    Dry "dry" dry: Dry = Dry::default();
    /// The sampler keeps tokens whose logits are at most this many standard deviations below the
    /// largest logit. Values of 0 or less keep all tokens.
    TopNSigma "top_n_sigma" top_n_sigma: f32 = 0.0;
    /// The sampler keeps this number of most likely tokens; 0 keeps all tokens.
    TopK "top_k" top_k: usize = 0;
    /// The sampler keeps the tokens whose surprise is nearest to the average, up to this total
    /// probability; 1 keeps all tokens.
    TypicalP "typ_p" typical_p: f32 = 1.0;
    /// The sampler keeps the most likely tokens up to this total probability; 1 keeps all tokens.
    TopP "top_p" top_p: f32 = 1.0;
    /// The sampler keeps tokens with at least this fraction of the largest probability; 0 keeps all tokens.
    MinP "min_p" min_p: f32 = 0.0;
    /// The sampler keeps the most likely tokens up to this fraction of the entropy of the 100 most
    /// likely tokens; 0 keeps all tokens.
    TopH "top_h" top_h: f32 = 0.0;
    /// The sampler keeps tokens with at least this probability; 0 keeps all tokens.
    EpsilonCutoff "epsilon_cutoff" epsilon_cutoff: f32 = 0.0;
    /// The sampler keeps tokens with at least this probability, or with less probability if the
    /// next token is hard to predict; 0 keeps all tokens.
    EtaCutoff "eta_cutoff" eta_cutoff: f32 = 0.0;
    /// The sampler keeps tokens with at least this number times the square of the largest probability.
    TopA "top_a" top_a: f32 = 0.0;
    /// The settings of XTC, which sometimes removes the most likely tokens.
    Xtc "xtc" xtc: Xtc = Xtc::default();
    /// The temperature by which the sampler divides logits. With the temperature 0, the sampler
    /// takes the most likely of the remaining tokens.
    Temperature "temperature" temperature: f32 = 0.0;
}

mod candidates;
mod logprobs;
mod mirostat;
mod rules;
mod setting;
mod speech;
#[cfg(test)]
mod tests;

pub use dry::{Breakers, Dry};
pub use logprobs::{Logprob, TokenLogprobs};
pub use mirostat::{Mirostat, MirostatVersion};
pub use penalties::Penalties;
pub use rules::{LogitRules, TextBounds};
pub use setting::{Range, Setting};
pub use speech::{SpeechRules, SpeechScores, TimestampRules};
pub use xtc::Xtc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::GenerateError;
use candidates::{Candidate, fraction, softmax};
use mirostat::Surprise;
use setting::{Draw, Effect, NumberField, Slot};
use speech::SpeechTally;

impl SamplingStep {
    /// All steps in the order of transformers. DRY comes after penalties, others that it lacks at the end.
    pub fn transformers_order() -> Vec<Self> {
        let known = [
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
        ];
        let others = Self::ORDER.iter().filter(|step| !known.contains(step));
        known.iter().chain(others).copied().collect()
    }

    /// Returns the sampling step with a name in llama.cpp or transformers.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ORDER.iter().copied().find(|step| step.word() == word)
    }
}

fn field<T>(fields: &'static [NumberField<T>], setting: &Setting) -> Option<&'static NumberField<T>> {
    fields.iter().find(|field| field.setting.name == setting.name)
}

impl Sampling {
    /// All numeric settings: those of the steps in their default order, of Mirostat and of the rules.
    pub fn settings() -> impl Iterator<Item = &'static Setting> {
        let mirostat = mirostat::FIELDS.iter().map(|field| &field.setting);
        let rules = rules::FIELDS.iter().map(|field| &field.setting);
        SamplingStep::ORDER.iter().flat_map(|step| step.settings()).chain(mirostat).chain(rules)
    }

    /// Returns the number of a setting, with -1 for all tokens.
    pub fn get(&self, setting: &Setting) -> f64 {
        self.clone().number(setting)
    }

    fn number(&mut self, setting: &Setting) -> f64 {
        self.slot(setting).map_or(0.0, |slot| slot.get())
    }

    /// Checks and stores the number of a setting.
    pub fn set(&mut self, setting: &Setting, number: f64) -> Result<(), GenerateError> {
        setting.check(number)?;
        self.store(setting, number);
        Ok(())
    }

    pub(crate) fn store(&mut self, setting: &Setting, number: f64) {
        if let Some(slot) = self.slot(setting) {
            slot.set(number);
        }
    }

    /// Lists the settings of the sampling steps that transformers calls warpers.
    pub(crate) fn warpers() -> impl Iterator<Item = &'static Setting> {
        let steps = SamplingStep::ORDER.iter().filter(|step| step.effect() != Effect::Penalizes);
        steps.flat_map(|step| step.settings())
    }

    /// Whether the most likely token is always chosen. The program then chooses it without logits.
    pub(crate) fn takes_the_likeliest(&self) -> bool {
        if self.temperature != 0.0 || !self.rules.is_off() {
            return false;
        }
        let keeps_the_likeliest =
            |step: &SamplingStep| step.effect() == Effect::KeepsBest || !step.is_active(self);
        let order = self.steps();
        order.contains(&SamplingStep::Temperature) && order.iter().all(keeps_the_likeliest)
    }

    /// The settings of steps that change nothing, because at temperature 0 the most likely token is chosen.
    pub fn without_effect(&self) -> Vec<&'static Setting> {
        if self.temperature != 0.0 {
            return Vec::new();
        }
        let is_idle = |step: &SamplingStep| {
            *step != SamplingStep::Temperature && step.effect() == Effect::KeepsBest && step.is_active(self)
        };
        let steps = SamplingStep::ORDER.iter().copied().filter(is_idle);
        let mirostat = self.mirostat.version.and(mirostat::FIELDS.first()).map(|field| &field.setting);
        steps.flat_map(|step| step.settings().into_iter().take(1)).chain(mirostat).collect()
    }

    /// Returns the sampling steps that the sampler runs.
    fn steps(&self) -> &[SamplingStep] {
        match self.mirostat.version {
            Some(_) => &[SamplingStep::Temperature],
            None => &self.order,
        }
    }

    /// Checks that each sampling setting is in the setting's range.
    fn check(&mut self) -> Result<(), GenerateError> {
        Self::settings().try_for_each(|setting| setting.check(self.number(setting)))?;
        self.rules.check()
    }
}

/// Chooses tokens one after another, with a random number generator and the state of Mirostat.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    random: ChaCha8Rng,
    surprise: Option<Surprise>,
    step: u64,
    text: TextBounds,
    tally: SpeechTally,
}

impl Sampler {
    /// Creates a sampler with the given settings.
    pub fn new(sampling: &Sampling) -> Result<Self, GenerateError> {
        let mut sampling = sampling.clone();
        sampling.check()?;
        Ok(Sampler {
            random: ChaCha8Rng::seed_from_u64(sampling.seed),
            surprise: Surprise::new(&sampling.mirostat),
            sampling,
            step: 0,
            text: TextBounds::default(),
            tally: SpeechTally::default(),
        })
    }

    /// Sets the bounds for [`Sampling::rules`]. By default, all tokens are new, without limit or stop tokens.
    pub fn begin(&mut self, text: TextBounds) {
        self.text = text;
    }

    /// The scores of the tokens so far, which are counted under [`SpeechRules`] only.
    pub fn scores(&self) -> SpeechScores {
        self.tally.scores
    }

    /// Counts a token that the compiled program chose, for the number in error messages.
    pub(crate) fn pass(&mut self) {
        self.step += 1;
    }

    /// Chooses a token after `seen`. It is an error if a logit is NaN or plus infinity, or all are minus
    /// infinity.
    pub fn choose(&mut self, seen: &[u32], logits: &[f32]) -> Result<u32, GenerateError> {
        self.choose_among(seen, logits, |_| true)
    }

    /// Returns the tokens from which the sampler would draw, and their probabilities, without drawing.
    pub fn probabilities(&self, seen: &[u32], logits: &[f32]) -> Result<Vec<(u32, f64)>, GenerateError> {
        let mut candidates = self.clone().candidates(seen, logits, |_| true)?;
        candidates.sort_unstable_by_key(|candidate| candidate.token);
        Ok(candidates.iter().map(|candidate| candidate.token).zip(softmax(&candidates)).collect())
    }

    /// Chooses a token like [`choose`](Self::choose), after the removal of tokens that are not `allowed`.
    pub fn choose_among(
        &mut self,
        seen: &[u32],
        logits: &[f32],
        allowed: impl Fn(u32) -> bool,
    ) -> Result<u32, GenerateError> {
        let candidates = self.candidates(seen, logits, allowed)?;
        let (token, probability) = self.draw(candidates);
        if self.sampling.rules.speech.is_on() {
            let new = seen.len().saturating_sub(self.text.prompt);
            self.tally.count(&self.sampling.rules.speech, new, logits, token);
        }
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
        if self.narrow(&mut candidates, seen, logits.len()) || is_constrained {
            Ok(candidates)
        } else {
            Err(GenerateError::NothingLeft { step })
        }
    }

    /// Runs all steps without drawing. If the rules forbid all candidates, keeps them and returns false.
    fn narrow(&mut self, candidates: &mut Vec<Candidate>, seen: &[u32], vocabulary: usize) -> bool {
        let Self { sampling, random, text, tally, .. } = self;
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
        let is_penalty = |step: &SamplingStep| step.effect() == Effect::Penalizes;
        let steps = sampling.steps();
        let (penalties, others) = steps.split_at(steps.iter().take_while(|step| is_penalty(step)).count());
        let mut draw = Draw { seen, random };
        let mut run = |steps: &[SamplingStep], candidates: &mut Vec<Candidate>| {
            let active = steps.iter().filter(|step| step.is_active(sampling));
            active.for_each(|step| step.run(sampling, candidates, &mut draw));
        };
        run(penalties, candidates);
        let is_left = forbid(candidates);
        if sampling.rules.speech.is_on() {
            tally.remaining.clone_from(candidates);
        }
        run(others, candidates);
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
