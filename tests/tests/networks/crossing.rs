//! Rotary embeddings that are others for long sequences, judged by `generate` of transformers: `tests/oracle/crossing.py`.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::io::Write as _;
use std::ops::ControlFlow;

use serde::Deserialize;
use tracewright::generate::{Batch, Budgeted, Generated, Lookup, Prompt, Session, TokenOptions};
use tracewright_tests::built::repository;
use tracewright_tests::golden::{BOUND, BuildOptions, Golden, Subject, build, check, relative_error};
use tracewright_tests::tensors::floats;

#[derive(Deserialize)]
struct Cases {
    model: String,
    context: usize,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt_tokens: Vec<u32>,
    tokens: Vec<u32>,
}

/// The number of tokens up to which the model uses its short factors.
const ORIGINAL: usize = 36;

fn cases() -> (Cases, Vec<Vec<f32>>) {
    let folder = repository().join("tests/fixtures/crossing");
    let cases: Cases = serde_json::from_slice(&fs::read(folder.join("cases.json")).unwrap()).unwrap();
    let file = fs::read(folder.join("cases.safetensors")).unwrap();
    let logits = (0..cases.cases.len()).map(|index| floats(&file, &format!("logits.{index}"))).collect();
    // Some stay below, some above, and some grow beyond.
    let crosses = |case: &&Case| {
        let end = case.prompt_tokens.len() + case.tokens.len();
        case.prompt_tokens.len() <= ORIGINAL && end > ORIGINAL + 1
    };
    assert_eq!(cases.cases.iter().filter(crosses).count(), 2);
    (cases, logits)
}

fn subject(cases: &Cases, batch: usize) -> Subject {
    let golden = Golden::fixture(&cases.model).unwrap();
    let sizes =
        BuildOptions { context: cases.context, batch, in_parts: batch > 1, ..BuildOptions::of(&golden) };
    build(&golden.model, &sizes, &["prefill", "decode"], Ok).unwrap()
}

fn options(case: &Case) -> TokenOptions {
    TokenOptions { max_tokens: case.tokens.len(), keep_logits: true, ..TokenOptions::default() }
}

/// The largest error of a logit, relative to the largest of its step.
fn judged(case: &Case, found: &Generated, expected: &[f32]) -> f64 {
    let rows = expected.chunks(expected.len() / case.tokens.len()).zip(&found.logits);
    let worst = rows.map(|(expected, found)| relative_error(expected, found)).fold(0.0, f64::max);
    let length = case.prompt_tokens.len();
    assert_eq!(found.tokens, case.tokens, "after {length} tokens");
    assert!(worst <= BOUND, "after {length} tokens: {worst:e}");
    worst
}

#[test]
fn longrope_is_that_of_transformers_below_across_and_above_the_original_context() {
    let (cases, logits) = cases();
    let alone = subject(&cases, 1);
    let mut worst = 0f64;
    let mut bits = Vec::new();
    for (case, expected) in cases.cases.iter().zip(&logits) {
        let go_on = |_| ControlFlow::Continue(());
        let mut session = Session::new(&alone.network);
        let found = session.generate(&case.prompt_tokens, &options(case), go_on).unwrap();
        worst = worst.max(judged(case, &found, expected));
        bits.push(found.logits);
    }
    let _ = writeln!(std::io::stderr(), "{} texts, worst error {worst:.1e}", cases.cases.len());

    // In a batch, short and long texts are in the same calls.
    let together = subject(&cases, 3);
    let mut batch = Batch::new(&together.network).schedule(Budgeted::new(5)).keep_prefixes();
    let (mut rows, mut next, mut ended) = ([0; 3], 0, 0);
    while ended < cases.cases.len() {
        while batch.free() > 0 && next < cases.cases.len() {
            let case = &cases.cases[next];
            rows[batch.join(Prompt::from(&case.prompt_tokens).reusing(), &options(case)).unwrap()] = next;
            next += 1;
        }
        for (row, found) in batch.step(|_, _| ControlFlow::Continue(())).unwrap() {
            let index = rows[row];
            assert_eq!(found.tokens, cases.cases[index].tokens);
            assert!(found.logits == bits[index], "text {index} has other bits in a batch");
            ended += 1;
        }
    }
}

/// A chat that grows beyond the original context, whose last turn is taken back.
#[test]
fn a_session_computes_its_tokens_again_when_the_factors_change() {
    let (cases, logits) = cases();
    let subject = subject(&cases, 1);
    let mut session = Session::new(&subject.network).speculate(Lookup::default());
    for index in [2, 3, 2, 5, 0] {
        let case = &cases.cases[index];
        let tokens = [&case.prompt_tokens[..], &case.tokens[..case.tokens.len() - 1]].concat();
        let rows: Vec<&[f32]> = logits[index].chunks(logits[index].len() / case.tokens.len()).collect();
        session.truncate(0);
        // Turns of three tokens after the prompt.
        session.feed(&case.prompt_tokens).unwrap();
        for end in (case.prompt_tokens.len() + 3..tokens.len()).step_by(3) {
            let found = session.feed(&tokens[session.tokens().len()..end]).unwrap();
            let error = relative_error(rows[end - case.prompt_tokens.len()], &found);
            assert!(error <= BOUND, "text {index} after {end} tokens: {error:e}");
        }
        for keep in [case.prompt_tokens.len() + 4, case.prompt_tokens.len() - 1] {
            session.truncate(keep);
            let found = session.feed(&tokens[keep..keep + 1]).unwrap();
            let error = relative_error(rows[keep + 1 - case.prompt_tokens.len()], &found);
            assert!(error <= BOUND, "text {index}, back to {keep} tokens: {error:e}");
        }
    }
}

/// A context beyond `max_position_embeddings` changes nothing for texts that are shorter.
#[test]
fn dynamic_is_that_of_transformers_up_to_the_longest_sequence_of_training() {
    let golden = Golden::fixture("llama-dynamic").unwrap();
    let sizes = BuildOptions { context: 200, ..BuildOptions::of(&golden) };
    let subject = build(&golden.model, &sizes, &["prefill", "decode", "score"], Ok).unwrap();
    let report = check(&golden, &subject).unwrap();
    assert!(report.passes(), "{report}");
}
