//! Several prompts at once give what each gives alone.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::ops::ControlFlow;

use tracewright::generate::{Batch, Finish, GenerateError, Prompt, Session, TokenOptions};
use tracewright_tests::built::repository;
use tracewright_tests::golden::{BuildOptions, Golden, GoldenPrompt, build};
use tracewright_tests::long;

const BATCH: usize = 4;

/// The families that the short form runs: with shared keys and values, with experts and sinks, and with matrices as state.
const SHORT: [&str; 3] = ["gemma4_unified", "gpt_oss", "granitemoehybrid"];

/// Each prompt of a golden in batches of four gets the tokens that transformers chose for it alone. The long form prefills in one call
/// and in parts.
fn check(golden: &Golden, context: usize, prompts: &[&GoldenPrompt]) {
    for in_parts in long::first([true, false], 1) {
        check_calls(
            golden,
            &BuildOptions { batch: BATCH, context, in_parts, ..BuildOptions::of(golden) },
            prompts,
        );
    }
}

fn check_calls(golden: &Golden, sizes: &BuildOptions, prompts: &[&GoldenPrompt]) {
    let context = sizes.context;
    let subject = build(&golden.model, sizes, &["prefill", "decode"], Ok).unwrap();
    // There are more prompts than rows: as texts end, others take their rows.
    let tokens: Vec<&[u32]> = prompts.iter().map(|prompt| &prompt.prompt_tokens[..]).collect();
    assert!(tokens.len() > BATCH);
    for keep_logits in [false, true] {
        let max_tokens = prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap();
        let options = TokenOptions { max_tokens, keep_logits, ..TokenOptions::default() };
        let mut told = vec![Vec::new(); tokens.len()];
        let answers = Batch::new(&subject.network)
            .generate(&tokens, &options, |i, token| {
                told[i].push(token);
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(answers.len(), prompts.len());
        for ((answer, told), prompt) in answers.iter().zip(&told).zip(prompts) {
            // A text ends when it has what was asked for, or when the context is full, and not before.
            let fits = context - prompt.prompt_tokens.len() + 1;
            assert_eq!(answer.tokens.len(), max_tokens.min(fits));
            let length = prompt.tokens.len().min(answer.tokens.len());
            assert!(length > 1 || fits == 1);
            assert_eq!(answer.tokens, *told);
            assert_eq!(answer.tokens[..length], prompt.tokens[..length]);
            assert_eq!(answer.logits.len(), if keep_logits { answer.tokens.len() } else { 0 });
        }
    }
    // A session is the same with one row.
    let alone = Session::new(&subject.network)
        .generate(tokens[0], &TokenOptions { max_tokens: 3, ..TokenOptions::default() }, |_| {
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(alone.tokens, prompts[0].tokens[..3]);

    let mut full = Batch::new(&subject.network);
    for _ in 0..BATCH {
        full.join([1], &TokenOptions::default()).unwrap();
    }
    let refused = full.join([1], &TokenOptions::default()).unwrap_err();
    assert!(matches!(refused, GenerateError::Full { sequences: BATCH }));
    assert_eq!(full.leave(2).unwrap().finish, Finish::Cancelled);
    assert_eq!(full.join([1], &TokenOptions::default()).unwrap(), 2);
}

#[test]
fn k17_a_ragged_batch_gives_the_tokens_of_single_runs() {
    let golden = Golden::shipped("demo").unwrap();
    let prompts: Vec<&GoldenPrompt> = golden.prompts.iter().take(3 * BATCH - 1).collect();
    let length = |prompt: &&GoldenPrompt| prompt.prompt_tokens.len();
    assert!(prompts.iter().map(length).max() > prompts.iter().map(length).min());
    for in_parts in [false, true] {
        let sizes = BuildOptions { batch: BATCH, context: 128, in_parts, ..BuildOptions::of(&golden) };
        check_calls(&golden, &sizes, &prompts);
    }
}

/// Lengths around the chunk and up to the context, which the longest fills.
#[test]
fn k17_a_batch_up_to_the_end_of_the_context() {
    let golden = Golden::fixture("llama-rope3").unwrap();
    check(&golden, golden.context, &golden.prompts.iter().collect::<Vec<_>>());
}

/// Rows whose rings and recurrent states stand at different positions, and are taken over by other texts.
#[test]
fn k17_windows_and_recurrent_states_in_a_batch() {
    let folders = std::fs::read_dir(repository().join("tests/fixtures")).unwrap().flatten();
    // Fixtures that bring their case are of families without a test elsewhere.
    let brought = folders.filter(|folder| folder.path().join("case.json").exists());
    let brought = brought.map(|folder| folder.file_name().into_string().unwrap());
    let brought = brought.filter(|fixture| long::is_wanted() || SHORT.contains(&&**fixture));
    for fixture in ["gemma3-a", "mistral", "lfm2"].map(str::to_owned).into_iter().chain(brought) {
        let golden = Golden::fixture(&fixture).unwrap();
        check(&golden, golden.context, &golden.prompts.iter().collect::<Vec<_>>());
    }
}

/// A prompt with a beginning that a row has read continues from a copy of the matrices at the end of a chunk.
#[test]
fn k17_matrices_are_kept_for_a_shared_beginning() {
    for fixture in long::first(["qwen3_5", "granitemoehybrid", "nemotron_h"], 1) {
        let golden = Golden::fixture(fixture).unwrap();
        let sizes = BuildOptions { batch: BATCH, ..BuildOptions::of(&golden) };
        let subject = build(&golden.model, &sizes, &["prefill", "decode"], Ok).unwrap();
        let mut batch = Batch::new(&subject.network).keep_prefixes();
        let mut computed = Vec::new();
        let prompt = golden.prompts.iter().find(|prompt| prompt.prompt_tokens.len() > golden.chunk).unwrap();
        let options = TokenOptions { max_tokens: prompt.tokens.len(), ..TokenOptions::default() };
        for _ in 0..2 {
            batch.join(Prompt::from(&prompt.prompt_tokens).reusing(), &options).unwrap();
            let ended = loop {
                if let Some((_, ended)) = batch.step(|_, _| ControlFlow::Continue(())).unwrap().pop() {
                    break ended;
                }
            };
            assert_eq!(ended.tokens, prompt.tokens, "{fixture}");
            computed.push(ended.prefill_tokens);
        }
        assert!(computed[1] < computed[0], "{fixture}: {computed:?}");
    }
}

#[test]
fn k17_a_sequence_that_stops_leaves_the_others_alone() {
    let golden = Golden::fixture("llama-rope3").unwrap();
    let subject = build(
        &golden.model,
        &BuildOptions { batch: BATCH, ..BuildOptions::of(&golden) },
        &["prefill", "decode"],
        Ok,
    )
    .unwrap();
    let (first, second) = (&golden.prompts[0], &golden.prompts[1]);
    let stop_tokens = vec![first.tokens[2]];
    let options = TokenOptions { max_tokens: 6, stop_tokens, ..TokenOptions::default() };
    let prompts = [&first.prompt_tokens[..], &second.prompt_tokens[..]];
    let answers =
        Batch::new(&subject.network).generate(&prompts, &options, |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!((answers[0].finish, &answers[0].tokens[..]), (Finish::Stop, &first.tokens[..2]));
    let alone = second.tokens.iter().take_while(|token| **token != first.tokens[2]).count().min(6);
    assert_eq!(answers[1].tokens, second.tokens[..alone]);
}
