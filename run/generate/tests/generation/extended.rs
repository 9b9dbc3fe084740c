//! Networks whose rotary embedding is another one for long texts: the state of a text depends on nothing but its tokens.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use std::ops::ControlFlow;

use support::{CHUNK, Hashing, Layers, ORIGINAL, go_on, hashing, mixed};
use tracewright_generate::{
    Batch, GenerateError, Lookup, Network, Prompt, SavedFault, SavedSequence, Session, TokenOptions,
};

const VOCABULARY: usize = 40;
const LAYERS: [Layers; 2] = [Layers::KvExtended, Layers::AllExtended];

fn text(seed: u64, length: usize) -> Vec<u32> {
    (0..length as u64).map(|i| (mixed(seed, i) % 30) as u32).collect()
}

fn options(max_tokens: usize) -> TokenOptions {
    TokenOptions { max_tokens, ..TokenOptions::default() }
}

fn best(logits: &[f32]) -> u32 {
    (1..logits.len()).fold(0, |best, token| if logits[token] > logits[best] { token } else { best }) as u32
}

/// The logits after a text that a new session reads.
fn fresh(network: &Network<Hashing>, tokens: &[u32]) -> Vec<f32> {
    Session::new(network).feed(tokens).unwrap()
}

#[test]
fn a_text_that_grows_beyond_the_original_length_is_read_again() {
    for layers in LAYERS {
        let network = hashing(VOCABULARY, 1, layers);
        for length in [1, ORIGINAL - 12, ORIGINAL - 1, ORIGINAL, ORIGINAL + 1, ORIGINAL + CHUNK] {
            let mut all = text(5, length);
            let plain = Session::new(&network).generate(&all, &options(20), go_on).unwrap();
            let drafter = Lookup::default();
            let drafted =
                Session::new(&network).speculate(drafter).generate(&all, &options(20), go_on).unwrap();
            for (step, &token) in plain.tokens.iter().enumerate() {
                assert_eq!(token, best(&fresh(&network, &all)), "{layers:?}, {length} tokens, step {step}");
                all.push(token);
            }
            assert_eq!(drafted.tokens, plain.tokens, "{layers:?}, {length} tokens");
        }
    }
}

/// Turns of a chat, and an answer that is taken back.
#[test]
fn a_session_goes_beyond_the_original_length_and_back() {
    for layers in LAYERS {
        let network = hashing(VOCABULARY, 1, layers);
        let mut session = Session::new(&network);
        for (keep, more) in
            [(0, 30), (30, 9), (39, 1), (40, 1), (41, 30), (60, 1), (25, 14), (10, 60), (39, 2)]
        {
            session.truncate(keep);
            let logits = session.feed(&text(keep as u64, more)).unwrap();
            assert_eq!(logits, fresh(&network, session.tokens()), "{layers:?}: {keep} tokens and {more}");
        }
    }
}

/// The state of a long text is of no use to a short one with the same beginning, and the other way round.
#[test]
fn texts_reuse_the_state_of_texts_with_the_same_embedding() {
    for layers in LAYERS {
        let network = hashing(VOCABULARY, 2, layers);
        let mut batch = Batch::new(&network).keep_prefixes();
        let long = text(1, ORIGINAL + 2 * CHUNK);
        let mut computed = |prompt: &[u32]| {
            let row = batch.join(Prompt::from(prompt).reusing(), &options(1)).unwrap();
            let (ended, found) = loop {
                if let Some(ended) = batch.step(|_, _| ControlFlow::Continue(())).unwrap().pop() {
                    break ended;
                }
            };
            assert_eq!((ended, found.tokens[0]), (row, best(&fresh(&network, prompt))), "{layers:?}");
            found.prefill_tokens
        };
        assert_eq!(computed(&long), long.len());
        assert!(computed(&long[..ORIGINAL + CHUNK]) < ORIGINAL + CHUNK);
        assert_eq!(computed(&long[..ORIGINAL]), ORIGINAL);
        assert!(computed(&long[..ORIGINAL - 2]) < ORIGINAL - 2);
    }
}

#[test]
fn a_saved_sequence_is_one_of_its_own_length() {
    for layers in LAYERS {
        let network = hashing(VOCABULARY, 2, layers);
        for length in [ORIGINAL - 1, ORIGINAL, ORIGINAL + 1, ORIGINAL + 30] {
            let prompt = text(3, length);
            let mut batch = Batch::new(&network);
            batch.generate(&[&prompt], &options(1), |_, _| ControlFlow::Continue(())).unwrap();
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), batch.save("one", &prompt).unwrap().to_bytes()).unwrap();
            // The state of a long text is not that of its beginning.
            let short = batch.save("one", &prompt[..20]).unwrap();
            let known = if layers == Layers::KvExtended && length <= ORIGINAL { 20 } else { 0 };
            assert_eq!(short.tokens().len(), known, "{layers:?}: {length}");

            let mut batch = Batch::new(&network);
            batch.load("one", SavedSequence::read(file.path()).unwrap()).unwrap();
            let more = [&prompt[..], &[7, 8]].concat();
            let row = batch.join(Prompt::from(&more).reusing(), &options(1)).unwrap();
            let found = std::iter::repeat_with(|| batch.step(|_, _| ControlFlow::Continue(())).unwrap());
            let found = found.flatten().find(|(ended, _)| *ended == row).unwrap().1;
            assert_eq!(found.tokens[0], best(&fresh(&network, &more)), "{layers:?}: {length}");
            let crosses = length <= ORIGINAL && more.len() > ORIGINAL;
            assert_eq!(found.prefill_tokens, if crosses { more.len() } else { 2 }, "{layers:?}: {length}");
        }
    }
}

/// A long text of another network is refused as any other is.
#[test]
fn a_long_sequence_of_a_plain_network_is_refused() {
    let [plain, extended] = [Layers::Kv, Layers::KvExtended].map(|layers| hashing(VOCABULARY, 1, layers));
    for (length, is_taken) in [(ORIGINAL, true), (ORIGINAL + 1, false)] {
        let prompt = text(3, length);
        let mut batch = Batch::new(&plain);
        batch.generate(&[&prompt], &options(1), |_, _| ControlFlow::Continue(())).unwrap();
        let saved = batch.save("one", &prompt).unwrap();
        match Batch::new(&extended).load("one", saved) {
            Ok(()) => assert!(is_taken),
            Err(GenerateError::Saved { fault: SavedFault::State { .. }, .. }) => assert!(!is_taken),
            Err(error) => panic!("{error}"),
        }
    }
}
