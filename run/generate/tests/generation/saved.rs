//! Sequences that are written to files and read again.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use std::ops::ControlFlow;

use proptest::prelude::*;
use serde_json::json;
use support::{CHUNK, LAYERS, Layers, go_on, hashing, mixed};
use tracewright_generate::{Batch, GenerateError, Prompt, SavedFault, SavedSequence, Session, TokenOptions};

const VOCABULARY: usize = 40;

fn fault(error: GenerateError) -> SavedFault {
    match error {
        GenerateError::Saved { fault, .. } => fault,
        error => panic!("{error}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A text goes on from a file as it goes on by itself, in any row and next to others.
    #[test]
    fn a_saved_sequence_goes_on(
        seed in any::<u64>(),
        layers in 0..LAYERS.len(),
        length in 1..6 * CHUNK,
        answer in 0..30usize,
        more in 1..20usize,
    ) {
        let layers = LAYERS[layers];
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("text.seq");
        let text = |seed, length| (0..length as u64).map(|i| (mixed(seed, i) % 30) as u32).collect::<Vec<_>>();
        let options = TokenOptions { max_tokens: 10, ..TokenOptions::default() };
        let prompt = text(seed, length);
        let network = hashing(VOCABULARY, 2, layers);
        let mut batch = Batch::new(&network);
        let begin = TokenOptions { max_tokens: answer, ..TokenOptions::default() };
        batch.join(text(seed ^ 1, 9), &options).unwrap();
        let row = batch.join(&prompt, &begin).unwrap();
        let mut ended = Vec::new();
        while ended.is_empty() {
            ended.extend(batch.step(|_, _| ControlFlow::Continue(())).unwrap().into_iter().filter(|one| one.0 == row));
        }
        let seen = [&prompt[..], &ended[0].1.tokens].concat();
        batch.save("one", &seen).unwrap().with_notes(json!({"x": 1})).write(&file).unwrap();

        // Another program, with other slots.
        let network = hashing(VOCABULARY, 3, layers);
        let mut batch = Batch::new(&network);
        batch.join(text(seed ^ 2, 30), &options).unwrap();
        let saved = SavedSequence::read(&file).unwrap();
        prop_assert_eq!(saved.notes(), &json!({"x": 1}));
        let known = saved.tokens().len();
        // The last token of an answer was not shown.
        prop_assert_eq!(known, if answer == 0 { length } else { length + ended[0].1.tokens.len() - 1 });
        batch.load("one", saved).unwrap();
        let prompt = [seen, text(seed ^ 3, more)].concat();
        let row = batch.join(Prompt::from(&prompt).reusing(), &options).unwrap();
        let alone = hashing(VOCABULARY, 1, layers);
        let expected = Session::new(&alone).generate(&prompt, &options, go_on).unwrap();
        let found = std::iter::repeat_with(|| batch.step(|_, _| ControlFlow::Continue(())).unwrap());
        let found = found.flatten().find(|(ended, _)| *ended == row).unwrap().1;
        prop_assert_eq!(found.prefill_tokens, prompt.len() - known);
        prop_assert_eq!(found.tokens, expected.tokens);
    }
}

#[test]
fn a_sequence_of_another_network_is_refused() {
    let network = hashing(VOCABULARY, 1, Layers::KvAndRing);
    let mut batch = Batch::new(&network);
    let options = TokenOptions { max_tokens: 1, ..TokenOptions::default() };
    batch.generate(&[&[1, 2, 3]], &options, |_, _| ControlFlow::Continue(())).unwrap();
    let saved = batch.save("one", &[1, 2, 3]).unwrap();
    let model = fault(batch.load("two", saved.clone()).unwrap_err());
    assert_eq!(model, SavedFault::Model { found: "one".into(), expected: "two".into() });
    let other = hashing(VOCABULARY, 1, Layers::All);
    let state = fault(Batch::new(&other).load("one", saved).unwrap_err());
    assert!(
        matches!(state, SavedFault::State { found, expected } if found == "nothing" && expected.contains("recurrent"))
    );
}
