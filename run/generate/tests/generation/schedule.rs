//! A schedule changes when tokens come, and no token.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use std::ops::ControlFlow;

use proptest::prelude::*;
use support::{ALL_LAYERS, CHUNK, Hashing, Layers, go_on, hashing, hashing_parts, mixed};
use tracewright_generate::{
    Batch, Budgeted, LogitRules, Lookup, Network, Sampling, Schedule, SequenceWork, Session, Together,
    TokenOptions,
};

const VOCABULARY: usize = 40;
const ROWS: usize = 8;

fn options(max_tokens: usize) -> TokenOptions {
    TokenOptions { max_tokens, ..TokenOptions::default() }
}

/// Options with rules that depend on the tokens before, and on the length of the prompt.
fn with_rules(max_tokens: usize) -> TokenOptions {
    let rules = LogitRules {
        begin_suppress_tokens: vec![1, 2, 3],
        no_repeat_ngram_size: 3,
        encoder_repetition_penalty: 1.3,
        forced_eos_token_id: vec![5],
        ..LogitRules::default()
    };
    TokenOptions { sampling: Sampling { rules, ..Sampling::default() }, ..options(max_tokens) }
}

/// Seven texts are continued when a long prompt arrives. Returns the positions of the longest call that their tokens wait for, and
/// how many tokens they get until the prompt is read.
fn gaps(network: &Network<Hashing>, schedule: impl Schedule) -> (usize, usize) {
    let mut batch = Batch::new(network).schedule(schedule);
    for row in 1..ROWS {
        batch.join([row as u32], &options(590)).unwrap();
    }
    batch.step(|_, _| ControlFlow::Continue(())).unwrap();
    let prompt: Vec<u32> = (0..512).map(|i| i % 30).collect();
    let late = batch.join(&prompt, &options(1)).unwrap();
    let (mut longest, mut told) = (0, 0);
    loop {
        let before = network.executor().positions.get();
        let mut has_gap = true;
        let ended = batch.step(|row, _| {
            has_gap &= row == late;
            told += usize::from(row != late);
            ControlFlow::Continue(())
        });
        assert!(!has_gap);
        longest = longest.max(network.executor().positions.get() - before);
        if ended.unwrap().iter().any(|(row, _)| *row == late) {
            return (longest, told);
        }
    }
}

#[test]
fn a_long_prompt_does_not_stall_the_others() {
    let calls = 512 / CHUNK;
    let network = hashing(VOCABULARY, ROWS, Layers::KvAndRing);
    assert_eq!(gaps(&network, Together), (ROWS * CHUNK, 7 * calls));
    // A token of each row: the same work in more calls.
    assert_eq!(gaps(&network, Budgeted::new(ROWS)), (ROWS, 7 * 512));
    // A chunk of the prompt, and a token of each row.
    let network = hashing_parts(VOCABULARY, ROWS, Layers::KvAndRing);
    assert_eq!(gaps(&network, Budgeted::default()), (CHUNK + ROWS, 7 * calls));
}

/// The positions that calls compute are those of texts and prompts, and not those of rows that wait for nothing.
#[test]
fn rows_without_work_cost_nothing() {
    let network = hashing_parts(VOCABULARY, ROWS, Layers::All);
    let positions = || network.executor().positions.take();
    let mut batch = Batch::new(&network).schedule(Budgeted::default());
    for (texts, computed) in [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (6, 8)] {
        batch.join([texts as u32], &options(100)).unwrap();
        batch.step(|_, _| ControlFlow::Continue(())).unwrap();
        assert_eq!(positions(), computed, "{texts} texts");
    }
    // The text that stays has a row between others.
    for row in [0, 1, 2, 3, 5] {
        batch.leave(row).unwrap();
    }
    batch.step(|_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!(positions(), 1);
    // Another one gets a row beside it.
    assert_eq!(batch.join([7; 3 * CHUNK], &options(9)).unwrap(), 3);
    for computed in [CHUNK + 1, CHUNK + 1, CHUNK + 1, 2] {
        batch.step(|_, _| ControlFlow::Continue(())).unwrap();
        assert_eq!(positions(), computed);
    }
}

/// Shows any rows any part of their tokens.
struct Wild(u64);

impl Schedule for Wild {
    fn plan(&mut self, rows: &[SequenceWork]) -> Vec<usize> {
        let mut plan: Vec<usize> = rows
            .iter()
            .map(|row| {
                self.0 = mixed(self.0, row.tokens as u64);
                self.0 as usize % (row.tokens + 1)
            })
            .collect();
        if plan.iter().all(|&tokens| tokens == 0) {
            plan = rows.iter().map(|row| row.tokens.min(1)).collect();
        }
        plan
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn any_schedule_gives_each_text_its_tokens(
        seed in any::<u64>(),
        layers in 0..ALL_LAYERS.len(),
        kind in 0..3usize,
        parts in any::<bool>(),
        ruled in any::<bool>(),
        drafts in any::<bool>(),
        texts in proptest::collection::vec((1..6 * CHUNK, 1..30usize), 1..6),
    ) {
        let options = if ruled { with_rules } else { options };
        let layers = ALL_LAYERS[layers];
        let network = if parts { hashing_parts } else { hashing }(VOCABULARY, 3, layers);
        let batch = Batch::new(&network);
        let mut batch = match kind {
            0 => batch.schedule(Wild(seed)),
            1 => batch.schedule(Budgeted::new(1 + seed as usize % 40)),
            _ => batch.schedule(Together),
        };
        if drafts {
            batch = batch.speculate(|| Box::new(Lookup::default()));
        }
        let prompts: Vec<Vec<u32>> = texts.iter().enumerate().map(|(i, &(length, _))| {
            (0..length as u64).map(|j| (mixed(seed ^ i as u64, j) % 9) as u32).collect()
        }).collect();
        let alone = hashing(VOCABULARY, 1, layers);
        let (mut waiting, mut rows) = (prompts.iter().zip(&texts), [None; 3]);
        loop {
            while batch.free() > 0 && let Some((prompt, &(_, max_tokens))) = waiting.next() {
                rows[batch.join(prompt, &options(max_tokens)).unwrap()] = Some((prompt, max_tokens));
            }
            if batch.free() == 3 {
                break;
            }
            for (row, found) in batch.step(|_, _| ControlFlow::Continue(())).unwrap() {
                let (prompt, max_tokens) = rows[row].unwrap();
                let expected = Session::new(&alone).generate(prompt, &options(max_tokens), go_on).unwrap();
                prop_assert_eq!(found.tokens, expected.tokens);
            }
        }
    }
}
