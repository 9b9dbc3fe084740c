//! Compares sampling steps with values computed by hand, and with the results of Hugging Face
//! transformers and llama.cpp for the same logits.

use std::fs;
use std::path::Path;

use super::*;
use crate::Tokenizer;
use proptest::prelude::*;
use serde_json::Value;

fn kept(logits: &[f32], keep: impl Fn(&mut Vec<Candidate>)) -> Vec<u32> {
    let candidate = |(i, &logit): (usize, &f32)| Candidate { token: i as u32, logit: logit.into() };
    let mut candidates: Vec<_> = logits.iter().enumerate().map(candidate).collect();
    keep(&mut candidates);
    let mut tokens: Vec<_> = candidates.iter().map(|candidate| candidate.token).collect();
    tokens.sort_unstable();
    tokens
}

/// Returns logits whose softmax is the list `probabilities`.
fn of(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}

#[test]
fn greedy_takes_the_lowest_of_equals() {
    let mut sampler = Sampler::new(&Sampling::default()).unwrap();
    assert_eq!(sampler.choose(&[], &[1.0, 3.0, -2.0, 3.0]).unwrap(), 1);
    assert_eq!(sampler.choose(&[], &[f32::NEG_INFINITY, -1e30]).unwrap(), 1);
}

#[test]
fn bad_logits_name_the_step_and_the_token() {
    let mut sampler = Sampler::new(&Sampling::default()).unwrap();
    sampler.choose(&[], &[0.0]).unwrap();
    let error = sampler.choose(&[], &[0.0, f32::NAN]).unwrap_err().to_string();
    assert!(error.starts_with("step 1: the logit of token 1 is NaN, expected"), "{error}");
    assert!(matches!(
        sampler.choose(&[], &[f32::INFINITY]),
        Err(GenerateError::Logit { step: 2, token: 0, .. })
    ));
    assert!(matches!(
        sampler.choose(&[], &[f32::NEG_INFINITY]),
        Err(GenerateError::NoCandidate { step: 3, count: 1 })
    ));
    assert!(matches!(sampler.choose(&[], &[]), Err(GenerateError::NoCandidate { count: 0, .. })));
}

#[test]
fn settings_out_of_range_are_errors() {
    let bad = [
        Sampling { temperature: -1.0, ..Sampling::default() },
        Sampling { temperature: f32::NAN, ..Sampling::default() },
        Sampling { top_p: 1.5, ..Sampling::default() },
        Sampling { min_p: -0.1, ..Sampling::default() },
        Sampling { typical_p: 1.1, ..Sampling::default() },
        Sampling { top_n_sigma: f32::INFINITY, ..Sampling::default() },
        Sampling { penalties: Penalties { repeat: 0.0, ..Penalties::default() }, ..Sampling::default() },
        Sampling {
            penalties: Penalties { frequency: f32::NAN, ..Penalties::default() },
            ..Sampling::default()
        },
        Sampling { dry: Dry { multiplier: -1.0, ..Dry::default() }, ..Sampling::default() },
        Sampling { xtc: Xtc { probability: 1.5, threshold: 0.1 }, ..Sampling::default() },
        Sampling {
            mirostat: Mirostat { version: Some(MirostatVersion::Two), target: -1.0, rate: 0.1 },
            ..Sampling::default()
        },
    ];
    for sampling in bad {
        assert!(matches!(Sampler::new(&sampling), Err(GenerateError::Setting { .. })), "{sampling:?}");
    }
}

#[test]
fn top_k_keeps_ties() {
    assert_eq!(kept(&[1.0, 5.0, 4.0, 4.0, 0.0], |c| top_k::keep(c, 2)), [1, 2, 3]);
    assert_eq!(kept(&[1.0, 5.0, 4.0], |c| top_k::keep(c, 1)), [1]);
}

#[test]
fn top_p_keeps_the_token_that_crosses() {
    let logits = of(&[0.5, 0.1, 0.25, 0.15]);
    assert_eq!(kept(&logits, |c| top_p::keep(c, 0.6)), [0, 2]);
    assert_eq!(kept(&logits, |c| top_p::keep(c, 0.45)), [0]);
    assert_eq!(kept(&logits, |c| top_p::keep(c, 0.0)), [0]);
    assert_eq!(kept(&logits, |c| top_p::keep(c, 0.95)), [0, 1, 2, 3]);
}

#[test]
fn min_p_is_a_share_of_the_best() {
    let logits = of(&[0.5, 0.1, 0.25, 0.15]);
    assert_eq!(kept(&logits, |c| min_p::keep(c, 0.4)), [0, 2]);
    assert_eq!(kept(&logits, |c| min_p::keep(c, 1.0)), [0]);
}

#[test]
fn top_a_is_a_multiple_of_the_squared_best() {
    // numpy: p[p >= a * p.max() ** 2]
    let kept_by = |top_a, p: &[f32]| {
        let sampling = Sampling { top_a, temperature: 1.0, ..Sampling::default() };
        kept(&of(p), |candidates| _ = Sampler::new(&sampling).unwrap().narrow(candidates, &[], p.len()))
    };
    let numpy = |a: f64, p: &[f32]| -> Vec<u32> {
        let best = p.iter().copied().map(f64::from).fold(0.0, f64::max);
        (0..).zip(p).filter(|&(_, &p)| f64::from(p) >= a * best * best).map(|(i, _)| i).collect()
    };
    for p in [&[0.5, 0.1, 0.26, 0.14][..], &[0.9, 0.06, 0.04], &[0.3, 0.25, 0.2, 0.15, 0.07, 0.03]] {
        for a in [0.0, 0.2, 0.41, 0.7, 1.0] {
            assert_eq!(kept_by(a, p), numpy(a.into(), p), "{a} of {p:?}");
        }
    }
    assert_eq!(kept_by(0.5, &[0.5, 0.1, 0.26, 0.14]), [0, 2, 3]);
    assert_eq!(kept_by(0.5, &[0.9, 0.06, 0.04]), [0]);
}

/// Returns the index of the largest value. If several values are equal, the function returns the
/// lowest index.
fn likeliest(logits: &[f32]) -> u32 {
    (0..logits.len()).min_by(|&a, &b| logits[b].total_cmp(&logits[a])).unwrap() as u32
}

#[test]
fn the_smallest_temperature_is_greedy() {
    for temperature in [1e-38, f32::MIN_POSITIVE, f32::from_bits(1)] {
        let sampling = Sampling { temperature, ..Sampling::default() };
        let mut sampler = Sampler::new(&sampling).unwrap();
        for logits in [[1.0, 30.0, 29.0], [-30.0, -10.0, -20.0], [0.0, f32::MAX, -f32::MAX]] {
            assert_eq!(sampler.choose(&[], &logits).unwrap(), likeliest(&logits), "{logits:?}");
        }
    }
}

#[test]
fn a_seed_draws_the_same_tokens() {
    let logits = of(&[0.4, 0.3, 0.2, 0.1]);
    let draw = |seed| -> Vec<u32> {
        let mut sampler = Sampler::new(&Sampling { temperature: 1.0, seed, ..Sampling::default() }).unwrap();
        (0..24).map(|_| sampler.choose(&[], &logits).unwrap()).collect()
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
    // These tokens are fixed, because every version and every machine must draw the same tokens.
    assert_eq!(draw(0)[..8], [2, 1, 1, 0, 2, 1, 2, 3]);
}

#[test]
fn frequencies_follow_the_probabilities() {
    let sampling = Sampling { temperature: 2.0, top_k: 3, ..Sampling::default() };
    let mut sampler = Sampler::new(&sampling).unwrap();
    // At temperature 2, probabilities become their square roots: 0.6, 0.3 and 0.1. Top-k removes the fourth
    // token.
    let logits = of(&[0.36, 0.09, 0.01, 0.0001]);
    let mut counts = [0; 4];
    (0..20_000).for_each(|_| counts[sampler.choose(&[], &logits).unwrap() as usize] += 1);
    for (count, probability) in counts.into_iter().zip([0.6, 0.3, 0.1, 0.0]) {
        assert!((f64::from(count) / 20_000.0 - probability).abs() < 0.012, "{counts:?}");
    }
}

proptest! {
    #[test]
    fn what_equals_the_begin_is_found_as_by_looking(list in prop::collection::vec(0u32..3, 0..30)) {
        let same = |at: usize| list.iter().zip(&list[at..]).take_while(|(a, b)| a == b).count();
        let expected: Vec<usize> = (0..list.len()).map(|at| if at == 0 { 0 } else { same(at) }).collect();
        prop_assert_eq!(dry::common_with_begin(&list), expected);
    }

    #[test]
    fn a_choice_is_always_possible(
        logits in prop::collection::vec(-50f32..50.0, 1..40),
        (top_k, top_p, min_p, seed) in (0usize..50, 0f32..=1.0, 0f32..=1.0, any::<u64>()),
    ) {
        let mut sampler = Sampler::new(&Sampling { temperature: 0.7, top_k, top_p, min_p, seed, ..Sampling::default() }).unwrap();
        let token = sampler.choose(&[], &logits).unwrap() as usize;
        prop_assert!(token < logits.len());
        if top_k == 1 || min_p == 1.0 {
            prop_assert_eq!(logits[token], logits.iter().copied().fold(f32::MIN, f32::max));
        }
    }
}

/// Reads the results of Hugging Face transformers and llama.cpp that `tests/oracle/sampling.py` has
/// recorded.
fn golden() -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/sampling.json");
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// Reads the settings of a test case. The order of the keys in the file is the order of the
/// sampling steps.
fn settings(case: &Value) -> Sampling {
    let mut sampling = Sampling { order: Vec::new(), ..Sampling::default() };
    for (name, x) in case["settings"].as_object().unwrap() {
        let number = |name: &str| x[name].as_f64().unwrap() as f32;
        let count = |name: &str| usize::try_from(x[name].as_i64().unwrap()).ok();
        let whole = x.as_f64().unwrap_or_default() as f32;
        sampling.order.push(match name.as_str() {
            "penalties" => {
                let (repeat, last_n) = (number("repeat"), count("last_n"));
                let (frequency, presence) = (number("frequency"), number("presence"));
                sampling.penalties = Penalties { last_n, repeat, frequency, presence };
                SamplingStep::Penalties
            }
            // transformers applies the repetition penalty to the whole text.
            "repeat" => {
                sampling.penalties = Penalties { last_n: None, repeat: whole, ..Penalties::default() };
                SamplingStep::Penalties
            }
            "dry" => {
                sampling.dry = Dry {
                    multiplier: number("multiplier"),
                    base: number("base"),
                    allowed_length: count("allowed_length").unwrap(),
                    last_n: count("last_n"),
                    breakers: Breakers::default(),
                };
                SamplingStep::Dry
            }
            "xtc" => {
                sampling.xtc = Xtc { probability: number("probability"), threshold: number("threshold") };
                SamplingStep::Xtc
            }
            "top_n_sigma" => {
                sampling.top_n_sigma = whole;
                SamplingStep::TopNSigma
            }
            "top_k" => {
                sampling.top_k = x.as_u64().unwrap() as usize;
                SamplingStep::TopK
            }
            "typical_p" => {
                sampling.typical_p = whole;
                SamplingStep::TypicalP
            }
            "top_p" => {
                sampling.top_p = whole;
                SamplingStep::TopP
            }
            "min_p" => {
                sampling.min_p = whole;
                SamplingStep::MinP
            }
            "temperature" => {
                sampling.temperature = whole;
                SamplingStep::Temperature
            }
            other => panic!("no setting {other}"),
        });
    }
    sampling
}

fn candidates_of(logits: &[f32]) -> Vec<Candidate> {
    let candidate = |(token, &logit): (u32, &f32)| Candidate { token, logit: logit.into() };
    (0..).zip(logits).map(candidate).collect()
}

#[test]
fn scores_are_those_of_transformers_and_of_llama_cpp() {
    let golden = golden();
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() > 60, "{}", cases.len());
    for case in cases {
        let logits = numbers(&case["logits"]);
        let seen: Vec<u32> = numbers(&case["seen"]).into_iter().map(|x| x as u32).collect();
        let mut candidates = candidates_of(&logits);
        let mut sampler = Sampler::new(&settings(case)).unwrap();
        sampler.narrow(&mut candidates, &seen, logits.len());
        let mut scores = vec![None; logits.len()];
        candidates.iter().for_each(|candidate| scores[candidate.token as usize] = Some(candidate.logit));
        if case["by"] == "llama.cpp" && case["name"] == "all" {
            let not_in_llama_cpp = [
                SamplingStep::TopH,
                SamplingStep::EpsilonCutoff,
                SamplingStep::EtaCutoff,
                SamplingStep::TopA,
            ];
            let order = SamplingStep::ORDER.iter().copied().filter(|step| !not_in_llama_cpp.contains(step));
            assert_eq!(settings(case).order, order.collect::<Vec<_>>(), "its default order");
        }
        let what = format!("{} of {}, {}", case["name"], case["by"], case["settings"]);
        for (token, (ours, theirs)) in scores.into_iter().zip(case["scores"].as_array().unwrap()).enumerate()
        {
            match (ours, theirs.as_f64()) {
                (None, None) => {}
                (Some(ours), Some(theirs)) => {
                    // transformers and llama.cpp round the logits to f32 after each step.
                    let bound = 2e-6 * theirs.abs().max(1.0);
                    assert!((ours - theirs).abs() <= bound, "{what}: {token} has {ours}, not {theirs}");
                }
                (ours, theirs) => panic!("{what}: {token} has {ours:?}, not {theirs:?}"),
            }
        }
    }
}

#[test]
fn mirostat_keeps_as_many_tokens_as_llama_cpp_when_it_chooses_what_it_chose() {
    let golden = golden();
    let texts = golden["mirostat"].as_array().unwrap();
    assert_eq!(texts.len(), 4);
    for text in texts {
        let of = &text["settings"];
        let [target, rate] = ["target", "rate"].map(|name| of[name].as_f64().unwrap() as f32);
        let version = Some(if of["version"] == 1 { MirostatVersion::One } else { MirostatVersion::Two });
        let temperature = text["temperature"].as_f64().unwrap() as f32;
        let mirostat = Mirostat { version, target, rate };
        let mut sampler = Sampler::new(&Sampling { temperature, mirostat, ..Sampling::default() }).unwrap();
        let mut several = 0;
        for (number, step) in text["steps"].as_array().unwrap().iter().enumerate() {
            let logits = numbers(&step["logits"]);
            let mut candidates = candidates_of(&logits);
            sampler.narrow(&mut candidates, &[], logits.len());
            assert_eq!(candidates.len() as u64, step["kept"].as_u64().unwrap(), "{of}, step {number}");
            several += usize::from(candidates.len() > 1);
            let chosen = candidates.iter().position(|one| u64::from(one.token) == step["chosen"]).unwrap();
            let probability = softmax(&candidates)[chosen];
            sampler.surprise.as_mut().unwrap().observe(probability);
        }
        assert!(several > 3, "{of}: only {several} steps left a choice");
    }
}

/// Returns the logits of three tokens after penalties. Before the penalties, each of the three
/// logits is 1.
fn penalized(sampling: Sampling, seen: &[u32]) -> Vec<f64> {
    let mut candidates = candidates_of(&[1.0; 3]);
    Sampler::new(&sampling).unwrap().narrow(&mut candidates, seen, 3);
    candidates.iter().map(|candidate| candidate.logit).collect()
}

#[test]
fn penalties_as_computed_by_hand() {
    let of = |last_n, repeat, frequency, presence| Sampling {
        temperature: 1.0,
        penalties: Penalties { last_n, repeat, frequency, presence },
        ..Sampling::default()
    };
    // Token 0 occurs twice, token 1 occurs once before the last two tokens, and token 2 never occurs.
    let seen = [1, 0, 0];
    assert_eq!(penalized(of(None, 2.0, 0.0, 0.0), &seen), [0.5, 0.5, 1.0]);
    assert_eq!(penalized(of(None, 1.0, 0.25, 0.0), &seen), [0.5, 0.75, 1.0]);
    assert_eq!(penalized(of(None, 1.0, 0.0, 0.25), &seen), [0.75, 0.75, 1.0]);
    assert_eq!(penalized(of(None, 2.0, 0.25, 0.5), &seen), [-0.5, -0.25, 1.0]);
    assert_eq!(penalized(of(Some(2), 2.0, 0.0, 0.0), &seen), [0.5, 1.0, 1.0]);
    assert_eq!(penalized(of(Some(0), 2.0, 1.0, 1.0), &seen), [1.0; 3]);
    // The repetition penalty multiplies logits that are not positive.
    let mut candidates = candidates_of(&[-1.0, 0.0]);
    of(None, 2.0, 0.0, 0.0).penalties.apply(&mut candidates, &seen);
    assert_eq!(candidates.iter().map(|one| one.logit).collect::<Vec<_>>(), [-2.0, 0.0]);
}

#[test]
fn dry_as_computed_by_hand() {
    let of = |breakers: &[(u32, &[u32])]| {
        let mut all = Breakers::default();
        for (token, tail) in breakers {
            all.sequences.entry(*token).or_default().push(tail.to_vec());
        }
        let dry = Dry { multiplier: 0.5, base: 2.0, allowed_length: 1, last_n: None, breakers: all };
        Sampling { temperature: 1.0, dry, ..Sampling::default() }
    };
    // The text ends with `8 9`. Token 0 would continue the repetition of `8 9`, with the penalty 0.5 · 2^(2 −
    // 1). Token 1 would continue the repetition of `9`, with the penalty 0.5 · 2^0.
    let seen = [8, 9, 0, 7, 9, 1, 8, 9];
    assert_eq!(penalized(of(&[]), &seen), [0.0, 0.5, 1.0]);
    // The breaker 8 leaves a repetition of one token, and the breaker 9 leaves no repetition. A
    // breaker of several tokens has no effect if only its first token occurs.
    assert_eq!(penalized(of(&[(8, &[])]), &seen), [0.5, 0.5, 1.0]);
    assert_eq!(penalized(of(&[(9, &[])]), &seen), [1.0, 1.0, 1.0]);
    assert_eq!(penalized(of(&[(8, &[9])]), &seen), [1.0, 1.0, 1.0]);
    assert_eq!(penalized(of(&[(8, &[7])]), &seen), [0.0, 0.5, 1.0]);
    // A token that is a breaker gets no penalty.
    assert_eq!(penalized(of(&[(0, &[])]), &seen), [1.0, 0.5, 1.0]);
    // If one token repeats many times, the penalty without a limit would exceed the range of f32.
    let scores = penalized(of(&[]), &[0; 400]);
    assert!(scores[0] < -1e37 && scores[0] > -f64::from(f32::MAX), "{scores:?}");
}

/// Uses the demo model's tokenizer, which encodes `fox:` as two tokens.
#[test]
fn a_breaker_is_found_however_it_is_cut_into_tokens() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo");
    let tokenizer = Tokenizer::load(&demo).unwrap().unwrap();
    let encode = |text: &str| tokenizer.encode_plain(text).unwrap();
    assert_eq!(encode(" fox:").len(), 2);
    let free =
        |breakers: &[&str], text: &str| Breakers::new(&tokenizer, breakers).unwrap().free(&encode(text));
    let (text, rest) = ("The owl said\n\"No\" to the fox: they went home", " they went home");
    assert_eq!(free(&["fox:"], text), encode(rest).len());
    assert_eq!(free(&[":"], text), encode(rest).len());
    assert_eq!(free(&["\n", ":"], text), encode(rest).len());
    assert_eq!(free(&["fox;", "", "owls"], text), encode(text).len());
    // The last token of the text is the breaker.
    assert_eq!(free(&["home"], text), 0);
}

#[test]
fn xtc_leaves_out_all_likely_tokens_but_the_least_likely() {
    let tokens = |probability, threshold, seed| {
        let xtc = Xtc { probability, threshold };
        let mut sampler =
            Sampler::new(&Sampling { temperature: 1.0, xtc, seed, ..Sampling::default() }).unwrap();
        let mut candidates = candidates_of(&of(&[0.15, 0.4, 0.25, 0.05, 0.15]));
        sampler.narrow(&mut candidates, &[], 5);
        let mut tokens: Vec<_> = candidates.iter().map(|candidate| candidate.token).collect();
        tokens.sort_unstable();
        tokens
    };
    assert_eq!(tokens(1.0, 0.2, 0), [0, 2, 3, 4]);
    assert_eq!(tokens(1.0, 0.3, 0), [0, 1, 2, 3, 4], "one alone is not left out");
    assert_eq!(tokens(1.0, 0.6, 0), [0, 1, 2, 3, 4]);
    assert_eq!(tokens(0.0, 0.2, 0), [0, 1, 2, 3, 4]);
    let often = (0..400).filter(|&seed| tokens(0.3, 0.2, seed).len() == 4).count();
    assert!((90..150).contains(&often), "{often} of 400 at a probability of 0.3");
}

#[test]
fn what_moves_the_likeliest_token_reads_logits() {
    let greedy = Sampling::default();
    assert!(greedy.takes_the_likeliest());
    let other = [
        Sampling { temperature: 1.0, ..greedy.clone() },
        Sampling { penalties: Penalties { presence: 0.1, ..Penalties::default() }, ..greedy.clone() },
        Sampling { dry: Dry { multiplier: 0.1, ..Dry::default() }, ..greedy.clone() },
        Sampling { xtc: Xtc { probability: 0.1, threshold: 0.1 }, ..greedy.clone() },
        Sampling { typical_p: 0.9, ..greedy.clone() },
        Sampling { order: vec![SamplingStep::TopK], ..greedy.clone() },
    ];
    assert!(!other.iter().any(Sampling::takes_the_likeliest));
    // Token 1 is the most likely, but the text already contains token 1.
    let penalties = Penalties { presence: 3.0, ..Penalties::default() };
    let mut sampler = Sampler::new(&Sampling { penalties, ..greedy }).unwrap();
    assert_eq!(sampler.choose(&[1], &[4.0, 5.0, 3.0]).unwrap(), 0);
}

#[test]
fn only_what_is_allowed_is_chosen() {
    let mut sampler = Sampler::new(&Sampling::default()).unwrap();
    assert_eq!(sampler.choose_among(&[], &[4.0, 5.0, 3.0], |token| token != 1).unwrap(), 0);
    let none = sampler.choose_among(&[], &[4.0, f32::NEG_INFINITY], |token| token == 1);
    assert!(matches!(none, Err(GenerateError::NothingAllowed { step: 1 })), "{none:?}");
    let mut sampler = Sampler::new(&Sampling { temperature: 3.0, ..Sampling::default() }).unwrap();
    for _ in 0..50 {
        assert_eq!(sampler.choose_among(&[], &[4.0, 5.0, 3.0], |token| token == 2).unwrap(), 2);
    }
}

#[test]
fn logprobs_are_those_of_the_whole_vocabulary() {
    let found = TokenLogprobs::of(&of(&[0.5, 0.1, 0.25, 0.15]), 1, 2);
    let near = |one: Logprob, token, p: f64| one.token == token && (one.logprob - p.ln()).abs() < 1e-6;
    assert!(near(found.chosen, 1, 0.1), "{found:?}");
    assert!(found.top.len() == 2 && near(found.top[0], 0, 0.5) && near(found.top[1], 2, 0.25), "{found:?}");
    assert_eq!(TokenLogprobs::of(&[1.0, 1.0], 0, 9).top.len(), 2);
    assert!(TokenLogprobs::of(&[1.0, 1.0], 0, 0).top.is_empty());
}
