//! A draft changes the number of calls, and no token: whatever was drafted, whoever else runs, however tokens are chosen.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use proptest::prelude::*;
use support::{ALL_LAYERS, CHUNK, Layers, ORIGINAL, WIDTH, go_on, hashing, mixed};
use tracewright_generate::{
    Batch, Certainty, DraftModel, Drafter, Dry, GenerateError, Generated, LogitRules, Lookup, Mirostat,
    MirostatVersion, Penalties, Sampling, SamplingStep, Session, TokenOptions, Xtc,
};

const VOCABULARY: usize = 40;

/// Drafts anything: what follows, what does not, and now and then what is no token.
struct Wild(u64);

impl Drafter for Wild {
    fn draft(&mut self, seen: &[u32], most: usize, _: Certainty) -> Result<Vec<u32>, GenerateError> {
        self.0 = mixed(self.0, seen.len() as u64);
        let begin = self.0 as usize % seen.len();
        let mut draft: Vec<u32> = seen[begin..].iter().take(most).copied().collect();
        if self.0.is_multiple_of(5) {
            draft.push((self.0 >> 8) as u32 % 50);
        }
        Ok(draft)
    }
}

/// Knows the answer.
struct Oracle(Vec<u32>);

impl Drafter for Oracle {
    fn draft(&mut self, seen: &[u32], most: usize, _: Certainty) -> Result<Vec<u32>, GenerateError> {
        Ok(self.0[seen.len()..].iter().take(most).copied().collect())
    }
}

/// Rules of a `generation_config.json`, which look at the text and at its bounds.
fn rules() -> LogitRules {
    LogitRules {
        suppress_tokens: vec![3, 11],
        begin_suppress_tokens: vec![1, 2],
        bad_words_ids: vec![vec![5, 6], vec![7]],
        sequence_bias: vec![(vec![4], 0.5), (vec![9, 8], -1.0)],
        no_repeat_ngram_size: 3,
        min_new_tokens: 30,
        forced_eos_token_id: vec![39],
        exponential_decay_length_penalty: Some((40, 1.01)),
        ..LogitRules::default()
    }
}

/// Ways of choosing tokens that look at the logits, at the text before, at random numbers, or at a state of their own.
fn samplings(seed: u64) -> Vec<Sampling> {
    let warm = Sampling { temperature: 0.8, seed, ..Sampling::default() };
    let penalties = Penalties { repeat: 1.2, frequency: 0.1, presence: 0.3, ..Penalties::default() };
    let dry = Dry { multiplier: 0.8, ..Dry::default() };
    let mirostat = |version| Mirostat { version: Some(version), target: 3.0, rate: 0.1 };
    vec![
        Sampling::default(),
        warm.clone(),
        Sampling { penalties: penalties.clone(), ..Sampling::default() },
        Sampling { penalties, dry, top_k: 20, top_p: 0.9, min_p: 0.01, ..warm.clone() },
        Sampling { xtc: Xtc { probability: 0.5, threshold: 0.1 }, typical_p: 0.9, ..warm.clone() },
        Sampling { rules: rules(), ..Sampling::default() },
        Sampling {
            rules: rules(),
            penalties: Penalties { repeat: 1.2, last_n: None, ..Penalties::default() },
            order: SamplingStep::transformers_order(),
            ..warm.clone()
        },
        Sampling { mirostat: mirostat(MirostatVersion::One), ..warm.clone() },
        Sampling { mirostat: mirostat(MirostatVersion::Two), ..warm },
    ]
}

fn same(found: &Generated, expected: &Generated) {
    assert_eq!(found.tokens, expected.tokens);
    assert_eq!((found.finish, &found.logits), (expected.finish, &expected.logits));
    assert_eq!(found.logprobs, expected.logprobs);
}

#[test]
fn every_drafter_sampling_and_state_gives_the_same_tokens() {
    for layers in ALL_LAYERS {
        let network = hashing(VOCABULARY, 1, layers);
        let small = hashing(VOCABULARY, 1, Layers::Kv);
        for (number, sampling) in samplings(7).into_iter().enumerate() {
            for keep_logits in [false, true] {
                let prompt = [1, 5, 2, 1, 5, 2, 8, number as u32];
                let logprobs = keep_logits.then_some(3);
                let options = TokenOptions {
                    max_tokens: 90,
                    sampling: sampling.clone(),
                    stop_tokens: vec![39],
                    keep_logits,
                    logprobs,
                    ..TokenOptions::default()
                };
                let expected = Session::new(&network).generate(&prompt, &options, go_on).unwrap();
                let check = |drafter: Box<dyn Drafter + '_>| {
                    let mut told = Vec::new();
                    let mut session = Session::new(&network).speculate(drafter);
                    let tell = |token| {
                        told.push(token);
                        ControlFlow::Continue(())
                    };
                    let found = session.generate(&prompt, &options, tell).unwrap();
                    same(&found, &expected);
                    assert_eq!(told, expected.tokens);
                    assert!(found.accepted <= found.drafted);
                    // The same session goes on as one without drafts does.
                    let more = TokenOptions { max_tokens: 20, ..options.clone() };
                    let mut plain = Session::new(&network);
                    plain.generate(&prompt, &options, go_on).unwrap();
                    assert_eq!(session.tokens(), plain.tokens());
                    same(
                        &session.generate(&[3, 4], &more, go_on).unwrap(),
                        &plain.generate(&[3, 4], &more, go_on).unwrap(),
                    );
                    found
                };
                check(Box::new(Lookup::default()));
                check(Box::new(Wild(number as u64)));
                check(Box::new(DraftModel::new(&small)));
                let text = [&prompt[..], &expected.tokens, &[39; 40]].concat();
                let found = check(Box::new(Oracle(text)));
                // One call for each seven or eight tokens.
                let is_extended = matches!(layers, Layers::KvExtended | Layers::AllExtended);
                // A text that becomes too long for its embedding is read once more.
                let again = if is_extended { ORIGINAL.div_ceil(CHUNK) + 1 } else { 0 };
                let most = expected.tokens.len().div_ceil(WIDTH - 1) + 2 + again;
                assert!(found.decode_steps <= most, "{layers:?} {number}: {found:?}");
                assert!(found.drafted - found.accepted < WIDTH);
            }
        }
    }
}

#[test]
fn an_answer_that_follows_a_schema_is_the_same() {
    use tracewright_generate::{Constrainer, Tokenizer, stop_tokens};

    let demo = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo");
    let tokenizer = Tokenizer::load(&demo).unwrap().unwrap();
    let stop_tokens = stop_tokens(&demo).unwrap();
    let constrainer = Constrainer::new(&tokenizer, &stop_tokens).unwrap();
    let schema = r#"{"type": "array", "minItems": 3, "maxItems": 5, "items": {"type": "object", "required": ["kind", "legs"],
        "properties": {"kind": {"enum": ["fox", "owl", "frog"]}, "legs": {"type": "integer", "minimum": 0, "maximum": 9}},
        "additionalProperties": false}}"#;
    let constraint = Some(constrainer.json_schema(schema).unwrap());
    let network = hashing(tokenizer.vocab_size(), 1, Layers::All);
    let mut drafted = 0;
    for seed in 0..6 {
        for sampling in samplings(seed) {
            let options = TokenOptions {
                max_tokens: 100,
                sampling,
                stop_tokens: stop_tokens.clone(),
                constraint: constraint.clone(),
                ..TokenOptions::default()
            };
            let prompt = [5, seed as u32];
            let expected = Session::new(&network).generate(&prompt, &options, go_on).unwrap();
            let lookup =
                Session::new(&network).speculate(Lookup::default()).generate(&prompt, &options, go_on);
            let wild = Session::new(&network).speculate(Wild(seed)).generate(&prompt, &options, go_on);
            let found = lookup.unwrap();
            same(&found, &expected);
            same(&wild.unwrap(), &expected);
            drafted += found.accepted;
        }
    }
    assert!(drafted > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Texts join and leave a batch while others draft.
    #[test]
    fn rows_that_come_and_go_get_the_tokens_that_they_get_alone(
        seed in any::<u64>(),
        layers in 0..ALL_LAYERS.len(),
        rows in 2..4usize,
        texts in proptest::collection::vec((1..3 * CHUNK, 1..40usize, 0..7usize, any::<bool>()), 3..8),
    ) {
        let layers = ALL_LAYERS[layers];
        let network = hashing(VOCABULARY, rows, layers);
        let alone = hashing(VOCABULARY, 1, layers);
        let texts: Vec<_> = texts.iter().enumerate().map(|(i, &(length, max_tokens, sampling, leaves))| {
            let token = |j| (mixed(seed ^ i as u64, j as u64) % 9) as u32;
            let sampling = samplings(seed)[sampling].clone();
            let options = TokenOptions { max_tokens, sampling, ..TokenOptions::default() };
            ((0..length).map(token).collect::<Vec<u32>>(), options, leaves)
        }).collect();
        let mut number = seed;
        let mut batch = Batch::new(&network).speculate(|| {
            number = mixed(number, 1);
            match number % 3 {
                0 => Box::new(Lookup::default()),
                _ => Box::new(Wild(number)),
            }
        });
        let (mut next, mut running) = (0, BTreeMap::new());
        while next < texts.len() || !running.is_empty() {
            if batch.free() > 0 && next < texts.len() {
                let (prompt, options, _) = &texts[next];
                running.insert(batch.join(prompt, options).unwrap(), (next, Vec::new()));
                next += 1;
            }
            let ended = batch.step(|row, token| {
                running.get_mut(&row).unwrap().1.push(token);
                ControlFlow::Continue(())
            }).unwrap();
            let check = |(text, told): (usize, Vec<u32>), found: Generated| {
                let (prompt, options, _): &(Vec<u32>, TokenOptions, bool) = &texts[text];
                let expected = Session::new(&alone).generate(prompt, options, go_on).unwrap();
                assert_eq!(found.tokens, told);
                assert_eq!(&found.tokens[..], &expected.tokens[..found.tokens.len()], "{layers:?}");
                found.tokens.len() == expected.tokens.len()
            };
            for (row, found) in ended {
                assert!(check(running.remove(&row).unwrap(), found));
            }
            let leaves = running.iter().find(|(_, (text, told))| texts[*text].2 && told.len() > 3);
            if let Some(&row) = leaves.map(|(row, _)| row) {
                check(running.remove(&row).unwrap(), batch.leave(row).unwrap());
            }
        }
    }
}
