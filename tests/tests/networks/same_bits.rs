//! The logits of a position depend only on its tokens. They do not depend on the number of tokens of a step, the number and order of
//! sequences, or tokens that a sequence read before and took back.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRng, TestRunner};
use tracewright::ops::ElementType::{Bf16, F16, F32};
use tracewright::ops::format::ActivationBits::{self, Eight, Mixed, Sixteen};
use tracewright::ops::{ElementType, WeightFormat};
use tracewright::targets::{Numerics, host_features};
use tracewright::trace::KvFormat;
use tracewright_tests::chunked::{Chunked, StepSize, StepTokens, Variant};
use tracewright_tests::long;

/// The sizes of steps: those of one sequence, which have one more token than a tile has rows at most; and those of several.
const SIZES: [StepSize; 6] = [(1, 1), (1, 17), (1, 3), (2, 1), (SEQUENCES, 5), (SEQUENCES, 1)];
/// The sizes of steps that have at most the tokens of a tile.
const SIZES_OF_TILE: [StepSize; 6] = [(1, 1), (1, 16), (1, 3), (2, 1), (SEQUENCES, 5), (SEQUENCES, 1)];
/// The sizes that the short form leaves out: each has fewer tokens than another one, and its kernels take long to compile.
const LONG_SIZES: [StepSize; 3] = [(1, 3), (2, 1), (SEQUENCES, 1)];
/// The feature of a processor with tiles.
const TILES: &str = "amx-tile";
const SEQUENCES: usize = 3;

/// Texts that sequences have, and schedules in all: of the short form and of the long one.
const TEXTS: usize = 4;
const SCHEDULES: [u32; 2] = [256, 5000];

/// A Llama, a Gemma 3 with rings and whole caches, an LFM2 with convolutions, a Mixtral, and a GLM-4.5 with
/// groups of experts. Also a gpt-oss with sinks, and a Qwen3.5 with matrices as state. The compiler generates two
/// matmuls of latent attention, whose order of additions depends on the number of tokens: DeepSeek-V3 is missing.
const MODELS: [&str; 7] = ["llama-untied", "gemma3-b", "lfm2", "mixtral", "glm4_moe", "gpt_oss", "qwen3_5"];

/// The models whose keys and values the short form stores in Q8: one with rings, one with experts.
const KV_Q8: [&str; 2] = ["gemma3-b", "mixtral"];

/// The short form tests the first of these, which have each element type, format and way to round activations.
const FORMATS: [(ElementType, Option<WeightFormat>, ActivationBits); 11] = [
    (F32, None, Eight),
    (Bf16, None, Eight),
    (F16, None, Eight),
    (Bf16, Some(WeightFormat::Q8), Mixed),
    (F32, Some(WeightFormat::Q4), Eight),
    (F32, Some(WeightFormat::Mxfp4), Eight),
    (Bf16, Some(WeightFormat::Q4K), Sixteen),
    (F32, Some(WeightFormat::Q8), Sixteen),
    (F32, Some(WeightFormat::Q4K), Mixed),
    (Bf16, Some(WeightFormat::Q4), Mixed),
    (Bf16, Some(WeightFormat::Mxfp4), Sixteen),
];

/// Processors whose kernels have other instructions than this machine's, and what it needs to run them.
const LEVELS: [(&str, &str); 2] = [("x86-64-v3", "avx2"), ("x86-64-v4", "avx512bw")];

fn this_has(feature: &str) -> bool {
    host_features().iter().any(|&(name, has)| has && name == feature)
}

/// Each model in each format in the long form; in the short one each model once. A machine with tiles computes in both ways.
fn variants() -> Vec<Variant> {
    let levels = LEVELS.into_iter().filter(|(_, feature)| this_has(feature));
    let levels = levels.map(|(level, _)| (Some(level), Numerics::Fast));
    let tiled = this_has(TILES).then_some((None, Numerics::Invariant));
    let levels: Vec<_> = [(None, Numerics::Fast)].into_iter().chain(tiled).chain(levels).collect();
    let mut variants = Vec::new();
    for (m, model) in MODELS.into_iter().enumerate() {
        for (f, (element, format, activations)) in FORMATS.into_iter().enumerate() {
            for (k, kv) in [KvFormat::Computed, KvFormat::Q8].into_iter().enumerate() {
                let (target, numerics) = levels[(f + 2 * m * k) % levels.len()];
                let first = f == m && k == usize::from(KV_Q8.contains(&model));
                if first || long::is_wanted() {
                    variants.push(Variant { model, element, format, kv, activations, target, numerics });
                }
            }
        }
    }
    variants
}

/// Only steps of up to 16 tokens have the same bits where kernels use tiles.
fn sizes_of(variant: &Variant) -> Vec<StepSize> {
    let tiles = variant.target.is_none() && variant.numerics == Numerics::Fast && this_has(TILES);
    let sizes = if tiles { SIZES_OF_TILE } else { SIZES };
    sizes.into_iter().filter(|size| long::is_wanted() || !LONG_SIZES.contains(size)).collect()
}

/// The events before a step of a sequence, and the most of its tokens that the step takes.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// It leaves, and another begins in its place.
    leaves: bool,
    text: usize,
    /// It goes back by so many tokens, if its state can.
    back: usize,
    count: usize,
}

/// Steps: the place of its size, the first sequence that it serves, both as far as there are so many; and the turn of each sequence.
type Schedule = Vec<(usize, usize, [Turn; SEQUENCES])>;

fn schedule() -> impl Strategy<Value = (bool, Schedule)> {
    let back = prop_oneof![4 => Just(0usize), 1 => 1..6usize];
    let turn = (proptest::bool::weighted(0.1), 0..TEXTS, back, 0..20usize)
        .prop_map(|(leaves, text, back, count)| Turn { leaves, text, back, count });
    let step = (0..SIZES.len(), 0..SEQUENCES, [turn.clone(), turn.clone(), turn]);
    (any::<bool>(), proptest::collection::vec(step, 3..16))
}

/// A text, how many of its tokens were seen, and below which position something was written.
#[derive(Clone, Copy)]
struct Sequence {
    text: usize,
    seen: usize,
    written: usize,
}

/// A model, texts, and the logits after each of their tokens, one by one.
struct Subject {
    chunked: Chunked,
    sizes: Vec<StepSize>,
    texts: Vec<Vec<u32>>,
    logits: Vec<Vec<Vec<f32>>>,
}

impl Subject {
    fn new(variant: Variant, sizes: Vec<StepSize>, edit: impl Fn(String) -> String) -> Self {
        let chunked = variant.build(&sizes, edit).unwrap();
        let length = chunked.context - 1;
        let token = |text: usize, i: usize| ((i * i * 7 + i * 37 + text * 41) % chunked.vocabulary) as u32;
        let texts: Vec<Vec<u32>> =
            (0..TEXTS).map(|text| (0..length - 3 * text).map(|i| token(text, i)).collect()).collect();
        let alone = |text: &Vec<u32>| {
            let mut state = chunked.empty((1, 1)).unwrap();
            let next = |start| {
                let runs = [StepTokens { start, tokens: &text[start..=start] }];
                chunked.step((1, 1), 0, &runs, &mut state).unwrap().remove(0).remove(0)
            };
            (0..text.len()).map(next).collect()
        };
        let logits = texts.iter().map(alone).collect();
        Self { chunked, sizes, texts, logits }
    }

    /// Every logit of a schedule has the bits that it has alone.
    fn run(&self, batched: bool, schedule: &Schedule) -> Result<(), TestCaseError> {
        let alone = self.sizes.iter().take_while(|size| size.0 == 1).count();
        let sizes = if batched { &self.sizes[..] } else { &self.sizes[..alone] };
        let all = sizes[sizes.len() - 1];
        let mut state = self.chunked.empty(all).unwrap();
        let mut sequences: Vec<Option<Sequence>> = vec![None; all.0];
        for (size, first, turns) in schedule {
            let size = sizes[*size % sizes.len()];
            let first = first % (all.0 - size.0 + 1);
            let served = first..first + size.0;
            let mut runs = Vec::new();
            for (sequence, turn) in sequences[served.clone()].iter_mut().zip(turns) {
                let ended = sequence.is_none_or(|s| turn.leaves || s.seen == self.texts[s.text].len());
                let begun = Sequence { text: turn.text, seen: 0, written: 0 };
                let mut now = sequence.filter(|_| !ended).unwrap_or(begun);
                let to = now.seen.saturating_sub(turn.back);
                if self.chunked.rewinds(now.written, to) {
                    now.seen = to;
                }
                let text = &self.texts[now.text];
                // A call for one token of one sequence has it.
                let least = usize::from(size == (1, 1));
                let count = turn.count.max(least).min(size.1).min(text.len() - now.seen);
                runs.push(StepTokens { start: now.seen, tokens: &text[now.seen..now.seen + count] });
                *sequence = Some(now);
            }
            let found = self.chunked.step(size, first, &runs, &mut state).unwrap();
            for (sequence, rows) in sequences[served].iter_mut().flatten().zip(found) {
                for (i, row) in rows.iter().enumerate() {
                    let expected = &self.logits[sequence.text][sequence.seen + i];
                    let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    prop_assert!(
                        bits(row) == bits(expected),
                        "{size:?}: position {} has other bits than alone, a difference of {:e}",
                        sequence.seen + i,
                        row.iter().zip(expected).fold(0.0, |most: f32, (a, b)| most.max((a - b).abs()))
                    );
                }
                sequence.seen += rows.len();
                sequence.written = sequence.written.max(sequence.seen);
            }
        }
        Ok(())
    }

    fn check(&self, cases: u32) -> Result<(), String> {
        let config = Config { cases, failure_persistence: None, ..Config::default() };
        let seed = TestRng::deterministic_rng(config.rng_algorithm);
        let mut runner = TestRunner::new_with_rng(config, seed);
        runner
            .run(&schedule(), |(batched, schedule)| self.run(batched, &schedule))
            .map_err(|error| error.to_string())
    }
}

#[test]
fn logits_have_the_same_bits_in_any_schedule() {
    let variants = variants();
    let all = SCHEDULES[usize::from(long::is_wanted())];
    let cases = all.div_ceil(variants.len() as u32);
    let mut failed = Vec::new();
    let count = variants.len();
    for (i, variant) in variants.into_iter().enumerate() {
        if long::is_wanted() {
            eprintln!("variant {} of {count}: {variant:?}", i + 1);
        }
        let subject = Subject::new(variant, sizes_of(&variant), |text| text);
        if let Err(error) = subject.check(cases) {
            failed.push(format!("{variant:?}: {error}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Products of one row add their columns from the last to the first.
pub(crate) fn reversed(text: String) -> String {
    let (mut edited, mut inside, mut renamed) = (String::new(), false, Vec::<(String, String)>::new());
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("func.func ") {
            inside = line.contains("@products_of_1_") || line.contains("@product_") && line.contains("_1x");
            renamed.clear();
        }
        let mut line = line.to_owned();
        for (old, new) in &renamed {
            line = replaced(&line, old, new);
        }
        edited += &line;
        edited.push('\n');
        if inside && line.contains("scf.for") && line.contains("iter_args") {
            let words: Vec<&str> = line.split_whitespace().collect();
            let place_of = |word: &str| words.iter().position(|found| *found == word).unwrap();
            let (place, first) = (words[place_of("scf.for") + 1], words[place_of("to") - 1]);
            let (end, step) = (words[place_of("to") + 1], words[place_of("step") + 1]);
            edited += &format!(
                "%both{number} = arith.addi {first}, {end} : index\n\
                 %last{number} = arith.subi %both{number}, {step} : index\n\
                 %back{number} = arith.subi %last{number}, {place} : index\n"
            );
            renamed.push((place.to_owned(), format!("%back{number}")));
        }
    }
    edited
}

/// A line with another name for a value.
fn replaced(line: &str, old: &str, new: &str) -> String {
    let mut rest = line;
    let mut edited = String::new();
    while let Some(at) = rest.find(old) {
        let after = &rest[at + old.len()..];
        let whole = !after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        edited += &rest[..at];
        edited += if whole { new } else { old };
        rest = after;
    }
    edited + rest
}

#[test]
fn another_order_of_additions_is_found() {
    let variant = Variant {
        model: MODELS[0],
        element: F32,
        format: None,
        kv: KvFormat::Computed,
        activations: Eight,
        target: None,
        numerics: Numerics::Fast,
    };
    let sizes = SIZES[..2].to_vec();
    let error = Subject::new(variant, sizes, reversed).check(16).unwrap_err();
    assert!(error.contains("other bits than alone"), "{error}");
}
