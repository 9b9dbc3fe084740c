//! The choice of the next token.
//!
//! The order and the meaning of the settings are those of transformers' `GenerationMixin._get_logits_processor` and
//! of the warpers in `generation/logits_process.py`: temperature, top-k, top-p, min-p, then one draw.

use std::cmp::Ordering;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::GenerateError;

/// How the next token is chosen. The default is greedy.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// 0 takes the most likely token; otherwise the logits are divided by it.
    pub temperature: f32,
    /// Only the `k` most likely tokens; 0 is no limit.
    pub top_k: usize,
    /// Only the most likely tokens whose probabilities sum up to this; 1 is no limit.
    pub top_p: f32,
    /// Only tokens with at least this share of the most likely one's probability; 0 is no limit.
    pub min_p: f32,
    /// The same seed draws the same tokens, on every machine.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 }
    }
}

/// Chooses one token after the other.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    random: ChaCha8Rng,
    step: u64,
}

/// A token that may still be chosen.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    token: u32,
    /// Divided by the temperature: more than an f32 holds, where that is small.
    logit: f64,
}

impl Sampler {
    /// Checks the settings.
    pub fn new(sampling: &Sampling) -> Result<Self, GenerateError> {
        let Sampling { temperature, top_p, min_p, seed, .. } = *sampling;
        let setting = |name, found: f32, expected| {
            Err(GenerateError::Setting { name, found: found.to_string(), expected })
        };
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return setting("temperature", temperature, "a number from 0");
        }
        if !(0.0..=1.0).contains(&top_p) {
            return setting("top_p", top_p, "a number from 0 to 1");
        }
        if !(0.0..=1.0).contains(&min_p) {
            return setting("min_p", min_p, "a number from 0 to 1");
        }
        Ok(Sampler { sampling: sampling.clone(), random: ChaCha8Rng::seed_from_u64(seed), step: 0 })
    }

    /// Counts a token that the program chose.
    pub(crate) fn pass(&mut self) {
        self.step += 1;
    }

    /// The token chosen from one row of logits.
    pub fn choose(&mut self, logits: &[f32]) -> Result<u32, GenerateError> {
        let step = self.step;
        self.step += 1;
        if let Some(token) = logits.iter().position(|&logit| logit.is_nan() || logit == f32::INFINITY) {
            return Err(GenerateError::Logit { step, token, found: logits[token] });
        }
        let greedy = argmax(logits).filter(|&token| logits[token as usize] > f32::NEG_INFINITY);
        let greedy = greedy.ok_or(GenerateError::NoCandidate { step, count: logits.len() })?;
        if self.sampling.temperature == 0.0 { Ok(greedy) } else { Ok(self.draw(logits)) }
    }

    fn draw(&mut self, logits: &[f32]) -> u32 {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        let scaled = logits.iter().enumerate().filter(|(_, logit)| **logit > f32::NEG_INFINITY);
        let scale = |(i, &logit): (usize, &f32)| Candidate {
            token: i as u32,
            logit: f64::from(logit) / f64::from(temperature),
        };
        let mut candidates: Vec<_> = scaled.map(scale).collect();
        if 0 < top_k && top_k < candidates.len() {
            keep_top_k(&mut candidates, top_k);
        }
        if top_p < 1.0 {
            keep_top_p(&mut candidates, top_p);
        }
        if min_p > 0.0 {
            keep_min_p(&mut candidates, min_p);
        }
        candidates.sort_unstable_by_key(|candidate| candidate.token);
        // 53 random bits: a number in [0, 1).
        let random = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let mut cumulative = 0.0;
        let probabilities = softmax(&candidates);
        let chosen = probabilities.iter().position(|probability| {
            cumulative += probability;
            random < cumulative
        });
        // The sum may be a rounding error below 1: then the last token is the one.
        candidates[chosen.unwrap_or(candidates.len() - 1)].token
    }
}

/// The lowest index of the largest value, as `torch.argmax` gives it.
fn argmax(logits: &[f32]) -> Option<u32> {
    let best = logits.iter().enumerate().reduce(|best, next| if next.1 > best.1 { next } else { best });
    best.map(|(token, _)| token as u32)
}

/// `TopKLogitsWarper`: tokens that tie with the k-th stay.
fn keep_top_k(candidates: &mut Vec<Candidate>, k: usize) {
    let (_, kth, _) = candidates.select_nth_unstable_by(k - 1, likely_first);
    let least = kth.logit;
    candidates.retain(|candidate| candidate.logit >= least);
}

/// `TopPLogitsWarper`: from the least likely upwards, tokens go while their sum is at most 1 − p; one always stays.
fn keep_top_p(candidates: &mut Vec<Candidate>, p: f32) {
    candidates.sort_unstable_by(likely_first);
    let mut cumulative = 0.0;
    let unlikely = softmax(candidates).into_iter().rev().take_while(|probability| {
        cumulative += probability;
        cumulative <= 1.0 - f64::from(p)
    });
    let keep = candidates.len() - unlikely.count();
    candidates.truncate(keep.max(1));
}

/// `MinPLogitsWarper`: the probability is compared with the best one's.
fn keep_min_p(candidates: &mut Vec<Candidate>, p: f32) {
    let probabilities = softmax(candidates);
    let least = f64::from(p) * probabilities.iter().copied().fold(0.0, f64::max);
    let mut probabilities = probabilities.into_iter();
    candidates.retain(|_| probabilities.next().is_some_and(|probability| probability >= least));
}

/// Most likely first; of equals the lower token, as in the greedy choice.
fn likely_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// Probabilities, with `libm`'s exponential: the same bits everywhere.
fn softmax(candidates: &[Candidate]) -> Vec<f64> {
    let max = candidates.iter().map(|candidate| candidate.logit).fold(f64::NEG_INFINITY, f64::max);
    let weight = |candidate: &Candidate| libm::exp(candidate.logit - max);
    let weights: Vec<_> = candidates.iter().map(weight).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept(logits: &[f32], keep: impl Fn(&mut Vec<Candidate>)) -> Vec<u32> {
        let candidate = |(i, &logit): (usize, &f32)| Candidate { token: i as u32, logit: logit.into() };
        let mut candidates: Vec<_> = logits.iter().enumerate().map(candidate).collect();
        keep(&mut candidates);
        let mut tokens: Vec<_> = candidates.iter().map(|candidate| candidate.token).collect();
        tokens.sort_unstable();
        tokens
    }

    /// Logits whose softmax is `probabilities`.
    fn of(probabilities: &[f32]) -> Vec<f32> {
        probabilities.iter().map(|p| p.ln()).collect()
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals() {
        let mut sampler = Sampler::new(&Sampling::default()).unwrap();
        assert_eq!(sampler.choose(&[1.0, 3.0, -2.0, 3.0]).unwrap(), 1);
        assert_eq!(sampler.choose(&[f32::NEG_INFINITY, -1e30]).unwrap(), 1);
    }

    #[test]
    fn bad_logits_name_the_step_and_the_token() {
        let mut sampler = Sampler::new(&Sampling::default()).unwrap();
        sampler.choose(&[0.0]).unwrap();
        let error = sampler.choose(&[0.0, f32::NAN]).unwrap_err().to_string();
        assert!(error.starts_with("step 1: logit of token 1 is NaN, expected"), "{error}");
        assert!(matches!(
            sampler.choose(&[f32::INFINITY]),
            Err(GenerateError::Logit { step: 2, token: 0, .. })
        ));
        assert!(matches!(
            sampler.choose(&[f32::NEG_INFINITY]),
            Err(GenerateError::NoCandidate { step: 3, count: 1 })
        ));
        assert!(matches!(sampler.choose(&[]), Err(GenerateError::NoCandidate { count: 0, .. })));
    }

    #[test]
    fn settings_out_of_range_are_errors() {
        let bad = [
            Sampling { temperature: -1.0, ..Sampling::default() },
            Sampling { temperature: f32::NAN, ..Sampling::default() },
            Sampling { top_p: 1.5, ..Sampling::default() },
            Sampling { min_p: -0.1, ..Sampling::default() },
        ];
        for sampling in bad {
            assert!(matches!(Sampler::new(&sampling), Err(GenerateError::Setting { .. })), "{sampling:?}");
        }
    }

    #[test]
    fn top_k_keeps_ties() {
        assert_eq!(kept(&[1.0, 5.0, 4.0, 4.0, 0.0], |c| keep_top_k(c, 2)), [1, 2, 3]);
        assert_eq!(kept(&[1.0, 5.0, 4.0], |c| keep_top_k(c, 1)), [1]);
    }

    #[test]
    fn top_p_keeps_the_token_that_crosses() {
        let logits = of(&[0.5, 0.1, 0.25, 0.15]);
        assert_eq!(kept(&logits, |c| keep_top_p(c, 0.6)), [0, 2]);
        assert_eq!(kept(&logits, |c| keep_top_p(c, 0.45)), [0]);
        assert_eq!(kept(&logits, |c| keep_top_p(c, 0.0)), [0]);
        assert_eq!(kept(&logits, |c| keep_top_p(c, 0.95)), [0, 1, 2, 3]);
    }

    #[test]
    fn min_p_is_a_share_of_the_best() {
        let logits = of(&[0.5, 0.1, 0.25, 0.15]);
        assert_eq!(kept(&logits, |c| keep_min_p(c, 0.4)), [0, 2]);
        assert_eq!(kept(&logits, |c| keep_min_p(c, 1.0)), [0]);
    }

    #[test]
    fn the_smallest_temperature_is_greedy() {
        for temperature in [1e-38, f32::MIN_POSITIVE, f32::from_bits(1)] {
            let sampling = Sampling { temperature, ..Sampling::default() };
            let mut sampler = Sampler::new(&sampling).unwrap();
            for logits in [[1.0, 30.0, 29.0], [-30.0, -10.0, -20.0], [0.0, f32::MAX, -f32::MAX]] {
                assert_eq!(sampler.choose(&logits).unwrap(), argmax(&logits).unwrap(), "{logits:?}");
            }
        }
    }

    #[test]
    fn a_seed_draws_the_same_tokens() {
        let logits = of(&[0.4, 0.3, 0.2, 0.1]);
        let draw = |seed| -> Vec<u32> {
            let mut sampler =
                Sampler::new(&Sampling { temperature: 1.0, seed, ..Sampling::default() }).unwrap();
            (0..24).map(|_| sampler.choose(&logits).unwrap()).collect()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        // Written down once: another version or machine must draw them too.
        assert_eq!(draw(0)[..8], [2, 1, 1, 0, 2, 1, 2, 3]);
    }

    #[test]
    fn frequencies_follow_the_probabilities() {
        let sampling = Sampling { temperature: 2.0, top_k: 3, ..Sampling::default() };
        let mut sampler = Sampler::new(&sampling).unwrap();
        // Divided by 2, the square roots remain: 0.6, 0.3, 0.1 after the fourth is gone.
        let logits = of(&[0.36, 0.09, 0.01, 0.0001]);
        let mut counts = [0; 4];
        (0..20_000).for_each(|_| counts[sampler.choose(&logits).unwrap() as usize] += 1);
        for (count, probability) in counts.into_iter().zip([0.6, 0.3, 0.1, 0.0]) {
            assert!((f64::from(count) / 20_000.0 - probability).abs() < 0.012, "{counts:?}");
        }
    }

    proptest! {
        #[test]
        fn a_choice_is_always_possible(
            logits in prop::collection::vec(-50f32..50.0, 1..40),
            (top_k, top_p, min_p, seed) in (0usize..50, 0f32..=1.0, 0f32..=1.0, any::<u64>()),
        ) {
            let mut sampler = Sampler::new(&Sampling { temperature: 0.7, top_k, top_p, min_p, seed }).unwrap();
            let token = sampler.choose(&logits).unwrap() as usize;
            prop_assert!(token < logits.len());
            if top_k == 1 || min_p == 1.0 {
                prop_assert_eq!(logits[token], logits.iter().copied().fold(f32::MIN, f32::max));
            }
        }
    }
}
