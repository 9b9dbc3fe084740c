//! Layers that look through a window, through IREE: whatever pieces tokens come in, however far a text goes back, whenever its
//! neighbours come and go.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use tracewright::generate::{Batch, Finish, Session, TokenOptions};
use tracewright_tests::golden::{BOUND, BuildOptions, Golden, Reference, STEPS, Subject, build};

/// Rings next to a full cache, rings alone, and a recurrent state, which cannot go back at all.
const FIXTURES: [&str; 3] = ["gemma3-a", "mistral", "lfm2"];

/// A golden, its network for this number of sequences, and its longest prompt, which fills the context.
fn open(fixture: &str, batch: usize) -> (Golden, Subject, Vec<u32>, Reference) {
    let golden = Golden::fixture(fixture).unwrap();
    let subject =
        build(&golden.model, &BuildOptions { batch, ..BuildOptions::of(&golden) }, STEPS, Ok).unwrap();
    let (number, longest) =
        golden.prompts.iter().enumerate().max_by_key(|(_, prompt)| prompt.prompt_tokens.len()).unwrap();
    let (tokens, reference) = (longest.prompt_tokens.clone(), golden.reference(number).unwrap());
    assert_eq!(tokens.len(), golden.context);
    (golden, subject, tokens, reference)
}

/// Shows a session what follows in pieces; the logits after each are those of one pass.
#[track_caller]
fn feed(session: &mut Session<'_>, tokens: &[u32], piece: usize, reference: &Reference) {
    while session.tokens().len() < tokens.len() {
        let seen = session.tokens().len();
        let row = session.feed(&tokens[seen..(seen + piece).min(tokens.len())]).unwrap();
        let position = session.tokens().len() - 1;
        let error = reference.error(position, &row);
        assert!(error <= BOUND, "{seen} seen, position {position} in pieces of {piece}: {error:e}");
    }
}

#[test]
fn pieces_that_meet_no_chunk() {
    for fixture in FIXTURES {
        println!("{fixture}");
        let (golden, subject, tokens, reference) = open(fixture, 1);
        let c = golden.chunk;
        for piece in [1, 2, 3, c - 1, c, c + 1, c + 3, 2 * c - 1] {
            feed(&mut Session::new(&subject.network), &tokens, piece, &reference);
        }
        // The logits of all positions, from an odd place on.
        let mut session = Session::new(&subject.network);
        session.feed(&tokens[..5]).unwrap();
        for (i, row) in session.score(&tokens[5..]).unwrap().iter().enumerate() {
            assert!(reference.error(5 + i, row) <= BOUND, "scored position {}", 5 + i);
        }
    }
}

/// A window of 6 and a chunk of 8 keep 13 positions: some of these are within the ring, others were overwritten.
#[test]
fn a_text_that_goes_back_goes_on_as_if_it_never_went_further() {
    for fixture in FIXTURES {
        println!("{fixture}");
        let (golden, subject, tokens, reference) = open(fixture, 1);
        let other = |token: &u32| (token + 1) % golden.vocab_size as u32;
        let mut session = Session::new(&subject.network);
        for (back, piece) in
            [(39, 1), (37, 3), (33, 2), (30, 7), (25, 11), (12, 5), (9, 9), (3, 13), (1, 1), (0, 8)]
        {
            feed(&mut session, &tokens, 7, &reference);
            session.truncate(back);
            // Another way on, which is forgotten too.
            let aside: Vec<u32> = tokens[back..].iter().take(4).map(other).collect();
            let row = session.feed(&aside).unwrap();
            let mut fresh = Session::new(&subject.network);
            let expected = fresh.feed(&[&tokens[..back], &aside].concat()).unwrap();
            let largest = expected.iter().fold(0f32, |max, x| max.max(x.abs()));
            let apart = row.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(f64::from(apart) <= BOUND * f64::from(largest), "aside from {back}: {apart:e}");
            session.truncate(back);
            feed(&mut session, &tokens, piece, &reference);
        }
    }
}

/// A text joins at each step, so that no two rows stand at the same position; two of them are broken off, and come again.
#[test]
fn rows_that_come_and_go_at_any_step() {
    for fixture in FIXTURES {
        println!("{fixture}");
        let (golden, subject, ..) = open(fixture, 3);
        let options = TokenOptions { max_tokens: 20, ..TokenOptions::default() };
        let mut waiting: Vec<usize> = (0..golden.prompts.len()).rev().collect();
        let (mut row_of, mut told) = (BTreeMap::new(), BTreeMap::<usize, Vec<u32>>::new());
        let mut batch = Batch::new(&subject.network);
        let mut broken = Vec::new();
        for step in 0.. {
            if batch.free() > 0
                && let Some(prompt) = waiting.pop()
            {
                let row = batch.join(&golden.prompts[prompt].prompt_tokens, &options).unwrap();
                row_of.insert(row, prompt);
            }
            if (step == 3 || step == 12)
                && let Some((row, prompt)) = row_of.pop_first()
            {
                assert_eq!(batch.leave(row).unwrap().finish, Finish::Cancelled);
                told.remove(&prompt);
                broken.push(prompt);
                waiting.insert(0, prompt);
            }
            if row_of.is_empty() {
                break;
            }
            let on_token = |row: usize, token| {
                told.entry(row_of[&row]).or_default().push(token);
                ControlFlow::Continue(())
            };
            for (row, generated) in batch.step(on_token).unwrap() {
                let prompt = row_of.remove(&row).unwrap();
                assert_eq!(generated.tokens, told[&prompt]);
            }
        }
        assert_eq!(broken.len(), 2);
        for (i, prompt) in golden.prompts.iter().enumerate() {
            let length = prompt.tokens.len();
            assert_eq!(told[&i][..length], prompt.tokens, "{fixture} prompt {i}");
        }
    }
}
