//! State that is copied from another text, or taken back, is the state that computing gives.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use proptest::prelude::*;
use support::{ALL_LAYERS, CHUNK, CONTEXT, LAYERS, Layers, go_on, hashing, mixed};
use tracewright_generate::{Batch, Lookup, Prompt, Sampling, Session, TokenOptions};

const VOCABULARY: usize = 40;

fn text(seed: u64, length: usize) -> Vec<u32> {
    (0..length).map(|i| (mixed(seed, i as u64) % 30) as u32).collect()
}

fn options(max_tokens: usize) -> TokenOptions {
    TokenOptions { max_tokens, ..TokenOptions::default() }
}

/// The network does not read tokens again that a text has in common with another one. With a recurrent state, that holds up to the
/// last end of a call for the second text, and in full for the third.
#[test]
fn a_text_computes_what_no_other_has_in_common() {
    for layers in LAYERS {
        let network = hashing(VOCABULARY, 3, layers);
        let mut batch = Batch::new(&network).keep_prefixes();
        let mut generate = |prompt: &[u32], max_tokens: usize| {
            let row = batch.join(Prompt::from(prompt).reusing(), &options(max_tokens)).unwrap();
            loop {
                if let Some((ended, generated)) = batch.step(|_, _| ControlFlow::Continue(())).unwrap().pop()
                {
                    assert_eq!(ended, row);
                    let alone = hashing(VOCABULARY, 1, layers);
                    let expected =
                        Session::new(&alone).generate(prompt, &options(max_tokens), go_on).unwrap();
                    assert_eq!(generated.tokens, expected.tokens, "{layers:?}");
                    return (row, generated.prefill_tokens, generated.tokens);
                }
            }
        };
        // Near the end of a long prompt, calls end after a quarter of a chunk.
        let (shared, border) = (text(1, 110), 110 / (CHUNK / 4) * (CHUNK / 4));
        let with = |end: &[u32]| [&shared[..], end].concat();
        let (first, computed, answer) = generate(&with(&[31, 32]), 30);
        assert_eq!(computed, 112);
        // Its state is copied, so that the first text can go on.
        let (second, computed, _) = generate(&with(&[33, 34, 35]), 30);
        let known = if layers == Layers::All { border } else { 110 };
        assert_eq!((second != first, computed), (true, 113 - known), "{layers:?}");
        let (third, computed, _) = generate(&[&with(&[31, 32])[..], &answer, &[36]].concat(), 10);
        // The last token of an answer was chosen and not shown.
        assert_eq!((third, computed), (first, 2), "{layers:?}");
        // The first token alone is in common.
        let (_, computed, _) = generate(&[shared[0], 38, 39], 5);
        assert_eq!(computed, if layers == Layers::All { 3 } else { 2 }, "{layers:?}");
        // The last token of a prompt is shown in any case.
        let (_, computed, _) = generate(&shared, 5);
        let known = if layers == Layers::All { border } else { 109 };
        assert_eq!(computed, 110 - known, "{layers:?}");
        // Where two texts part in the middle of a chunk, the state is kept.
        let in_chunk = |end| [&shared[..44], &[end]].concat();
        let (_, computed, _) = generate(&in_chunk(37), 5);
        assert_eq!(computed, if layers == Layers::All { 45 - 32 } else { 1 }, "{layers:?}");
        let (_, computed, _) = generate(&in_chunk(38), 5);
        assert_eq!(computed, 1, "{layers:?}");
    }
}

/// A text that leaves before its first step passes on the beginning of the state that it took over.
#[test]
fn the_state_of_a_text_that_left_at_once_is_passed_on() {
    for layers in LAYERS {
        let (network, alone) = (hashing(VOCABULARY, 2, layers), hashing(VOCABULARY, 1, layers));
        let mut batch = Batch::new(&network).keep_prefixes();
        let first = text(1, 3 * CHUNK);
        let second = [&first[..2 * CHUNK], &[31, 32]].concat();
        for (prompt, leaves) in [(&first, false), (&first, true), (&second, false), (&first, false)] {
            let row = batch.join(Prompt::from(prompt).reusing(), &options(8)).unwrap();
            if leaves {
                batch.leave(row).unwrap();
                continue;
            }
            let generated = loop {
                if let Some((_, generated)) = batch.step(|_, _| ControlFlow::Continue(())).unwrap().pop() {
                    break generated;
                }
            };
            let expected = Session::new(&alone).generate(prompt, &options(8), go_on).unwrap();
            assert_eq!(generated.tokens, expected.tokens, "{layers:?}");
        }
    }
}

/// A text that left before its first step had copied a whole state. A text with less in common still gets its part of this copy.
#[test]
fn a_copy_that_nobody_computed_with_is_shortened() {
    for layers in LAYERS {
        let (network, alone) = (hashing(VOCABULARY, 2, layers), hashing(VOCABULARY, 1, layers));
        let mut batch = Batch::new(&network).keep_prefixes();
        let first = text(1, 4 * CHUNK);
        batch.join(Prompt::from(&first).reusing(), &options(64)).unwrap();
        for _ in 0..6 {
            assert!(batch.step(|_, _| ControlFlow::Continue(())).unwrap().is_empty());
        }
        let left = batch
            .join(Prompt::from(&[&first[..3 * CHUNK], &[31, 32]].concat()).reusing(), &options(8))
            .unwrap();
        batch.leave(left).unwrap();
        let prompt = [&first[..CHUNK + 1], &[33, 34]].concat();
        let row = batch.join(Prompt::from(&prompt).reusing(), &options(8)).unwrap();
        let generated = loop {
            let ended = batch.step(|_, _| ControlFlow::Continue(())).unwrap();
            if let Some((_, generated)) = ended.into_iter().find(|(one, _)| *one == row) {
                break generated;
            }
        };
        let expected = Session::new(&alone).generate(&prompt, &options(8), go_on).unwrap();
        assert_eq!(generated.tokens, expected.tokens, "{layers:?}");
    }
}

/// Snapshots cost time and memory, so only texts that ask for reuse keep them.
#[test]
fn a_text_without_reuse_keeps_no_snapshots() {
    let network = hashing(VOCABULARY, 2, Layers::All);
    let mut batch = Batch::new(&network).keep_prefixes();
    let mut computed = |reuse: bool, last: u32| {
        let prompt = [&text(1, 3 * CHUNK)[..], &[last]].concat();
        if reuse {
            batch.join(Prompt::from(&prompt).reusing(), &options(1)).unwrap()
        } else {
            batch.join(&prompt, &options(1)).unwrap()
        };
        loop {
            if let Some((_, generated)) = batch.step(|_, _| ControlFlow::Continue(())).unwrap().pop() {
                return generated.prefill_tokens;
            }
        }
    };
    let texts = [(false, 31), (true, 32), (true, 33)].map(|(reuse, last)| computed(reuse, last));
    assert_eq!(texts, [3 * CHUNK + 1, 3 * CHUNK + 1, 1]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// Texts with beginnings in common join and leave, draft, and take over each other's state, while others run.
    #[test]
    fn tokens_are_those_of_a_text_alone(
        seed in any::<u64>(),
        layers in 0..ALL_LAYERS.len(),
        rows in 1..4usize,
        drafts in any::<bool>(),
        texts in proptest::collection::vec((0..3u64, 1..5 * CHUNK, 0..CHUNK, 1..30usize, any::<bool>()), 3..10),
    ) {
        let layers = ALL_LAYERS[layers];
        let network = hashing(VOCABULARY, rows, layers);
        let alone = hashing(VOCABULARY, 1, layers);
        let mut batch = Batch::new(&network).keep_prefixes();
        if drafts {
            batch = batch.speculate(|| Box::new(Lookup::default()));
        }
        let (mut next, mut running, mut answers) = (0, BTreeMap::new(), vec![Vec::new()]);
        while next < texts.len() || !running.is_empty() {
            if batch.free() > 0 && next < texts.len() {
                let (common, length, own, max_tokens, goes_on) = texts[next];
                // Some go on where another text ended.
                let mut prompt = if goes_on { answers[next % answers.len()].clone() } else { text(common, length) };
                prompt.extend(text(seed ^ next as u64, own.max(1)));
                prompt.truncate(CONTEXT - 40);
                let sampling = Sampling { temperature: (seed % 2) as f32, seed, ..Sampling::default() };
                let options = TokenOptions { sampling, ..options(max_tokens) };
                let row = batch.join(Prompt::from(&prompt).reusing(), &options).unwrap();
                running.insert(row, (prompt, options));
                next += 1;
            }
            for (row, generated) in batch.step(|_, _| ControlFlow::Continue(())).unwrap() {
                let (prompt, options) = running.remove(&row).unwrap();
                let expected = Session::new(&alone).generate(&prompt, &options, go_on).unwrap();
                assert_eq!(generated.tokens, expected.tokens, "{layers:?}");
                answers.push([prompt, generated.tokens].concat());
            }
            if mixed(seed, next as u64).is_multiple_of(5)
                && let Some((row, _)) = running.pop_first()
            {
                batch.leave(row).unwrap();
            }
        }
    }
}
