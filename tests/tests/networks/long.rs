//! Long sequences, judged by transformers: every rotary embedding at 8,192 positions and one past 32,768, and 10,000 tokens
//! through a window.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tracewright::generate::{Network, Session, TokenOptions};
use tracewright::irpa::Checkpoint;
use tracewright::lower::Weights;
use tracewright::models::{Architecture as _, ModelConfig};
use tracewright::ops::ElementType::F32;
use tracewright::runtime::Device;
use tracewright::simplify::Rules;
use tracewright::{EntryPoint, Lowered};
use tracewright_tests::built::{Built, compiler, repository};
use tracewright_tests::golden::{BOUND, Golden, greedy, relative_error};
use tracewright_tests::tensors::{floats, tokens};
use tracewright_tests::{level, long};

/// Tokens that one prefill takes.
const CHUNK: usize = 128;

/// The longest sequence for which the embeddings `dynamic` and `longrope` are the original ones.
const TRAINED: usize = 2048;

/// The device of these tests: all threads of this machine.
const DEVICE: Device = Device::LocalTask { workers: 0 };

/// A model for sequences of any length, whatever it was trained for.
fn build(model: &Path, chunk: usize, context: usize, weights: Weights) -> Built {
    let config = ModelConfig::read(model, &[]).unwrap();
    let trace = config.trace(F32, &EntryPoint::steps(1, chunk, context)).unwrap().trace;
    let trace = trace.with_entries(&["prefill", "decode"]);
    let target = compiler().unwrap().resolve(&level::target()).unwrap();
    let lowered = Lowered::new(&trace, Rules::default(), target, weights, config.ignorable()).unwrap();
    let checkpoint = Checkpoint::open(model).unwrap();
    Built::new(lowered, &trace, &checkpoint, DEVICE).unwrap()
}

fn network(built: &Built) -> Network {
    Network::new(&built.runtime, &built.program, &built.module.signatures).unwrap()
}

fn fixture(name: &str) -> PathBuf {
    repository().join("tests/fixtures").join(name)
}

#[derive(Deserialize)]
struct Case {
    name: String,
    rope_parameters: serde_json::Value,
    length: usize,
    positions: Vec<usize>,
}

/// Every embedding, in sequences of this length, which are the whole context: some tables are those of the context.
fn ropes(length: usize, is_asked_for: impl Fn(&str) -> bool) {
    #[derive(Deserialize)]
    struct Cases {
        cases: Vec<Case>,
    }
    let from = fixture("long-ropes");
    let Cases { cases } = serde_json::from_slice(&fs::read(from.join("cases.json")).unwrap()).unwrap();
    let file = fs::read(from.join("cases.safetensors")).unwrap();
    let config: serde_json::Value =
        serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    let tokens = tokens(&file, "tokens");
    let plain = floats(&file, &format!("default-{length}"));
    let cases: Vec<Case> = cases.into_iter().filter(|case| case.length == length).collect();
    assert_eq!(cases.len(), 6, "default, linear, dynamic, llama3, yarn, longrope");
    for Case { name, rope_parameters, positions, .. } in cases {
        if !is_asked_for(&name) {
            continue;
        }
        let model = tempfile::tempdir().unwrap();
        let mut config = config.clone();
        config["rope_parameters"] = rope_parameters;
        fs::write(model.path().join("config.json"), config.to_string()).unwrap();
        fs::copy(from.join("model.safetensors"), model.path().join("model.safetensors")).unwrap();
        let built = build(model.path(), CHUNK, length, Weights::default());
        let network = network(&built);
        let expected = floats(&file, &name);
        let vocabulary = expected.len() / positions.len();
        let mut session = Session::new(&network);
        let mut worst = 0f64;
        // Up to the longest sequence of training, a dynamic embedding is a plain one. A longrope embedding has its
        // short factors, which `crossing.rs` judges.
        let kind = name.split('-').next().unwrap();
        let short = |position: usize| ["dynamic", "longrope"].contains(&kind) && position < TRAINED;
        let rows = expected.chunks(vocabulary).zip(plain.chunks(vocabulary));
        for (&position, (expected, plain)) in positions.iter().zip(rows) {
            if short(position) && kind == "longrope" {
                continue;
            }
            let expected = if short(position) { plain } else { expected };
            let seen = session.tokens().len();
            let found = relative_error(expected, &session.feed(&tokens[seen..=position]).unwrap());
            assert!(found <= BOUND, "{name} at position {position}: {found:e}");
            worst = worst.max(found);
        }
        assert_eq!(session.tokens().len(), length);
        // What is compared tells embeddings apart.
        let last = |rows: &[f32]| rows[rows.len() - vocabulary..].to_vec();
        let apart = relative_error(&last(&plain), &last(&expected));
        assert!(apart > 100.0 * BOUND || name.starts_with("default"), "{name}: {apart:e} from default");
        let figures = format!("worst error {worst:.1e}, {apart:.1e} from the plain embedding");
        let _ = writeln!(std::io::stderr(), "{name}: {figures}");
    }
}

#[test]
fn every_rotary_embedding_in_a_context_of_8192() {
    ropes(8192, |_| true);
}

/// A position costs as much as there are before it: one embedding of those that are stretched.
#[test]
fn a_rotary_embedding_one_position_past_32768() {
    let all = long::is_wanted();
    ropes(32769, |name| all || name.starts_with("yarn"));
}

/// The ring is overwritten a hundred times, and no memory is needed for that.
#[test]
fn ten_thousand_tokens_through_a_window() {
    let model = fixture("long-ring");
    let file = fs::read(model.join("golden.safetensors")).unwrap();
    let (prompt, expected) = (tokens(&file, "prompt"), tokens(&file, "tokens"));
    assert_eq!(expected.len(), 10_000);
    let built = build(&model, 32, 10_240, Weights::default());
    let network = network(&built);
    let options = TokenOptions { max_tokens: expected.len(), ..TokenOptions::default() };
    let generated =
        Session::new(&network).generate(&prompt, &options, |_| ControlFlow::Continue(())).unwrap();
    let same = generated.tokens.iter().zip(&expected).take_while(|(a, b)| a == b).count();
    assert_eq!(same, expected.len(), "the first other token");
    // The logits of each thousandth.
    let rows = floats(&file, "logits");
    let vocabulary = network.vocabulary();
    let text = [&prompt[..], &expected].concat();
    let mut session = Session::new(&network);
    let mut worst = 0f64;
    for (i, row) in rows.chunks(vocabulary).enumerate() {
        let (seen, chosen) = (session.tokens().len(), prompt.len() + 1000 * (i + 1) - 1);
        worst = relative_error(row, &session.feed(&text[seen..chosen]).unwrap()).max(worst);
    }
    assert!(worst > 0.0 && worst <= BOUND, "{worst:e}");
    let _ = writeln!(std::io::stderr(), "10,000 tokens exact, worst error of each thousandth {worst:.1e}");
}

/// Without kernels, attention reads a part of a long cache, but not in a network that also has rings. There,
/// the code after the choice of a length does not compile (docs/upstream/two_numbers.mlir).
#[test]
fn rings_behind_a_long_cache_without_kernels() {
    let golden = Golden::fixture("gemma2").unwrap();
    let built = build(&golden.model, golden.chunk, 1024, Weights { kernels: false, ..Weights::default() });
    let network = network(&built);
    for prompt in &golden.prompts {
        let generated = greedy(&network, &prompt.prompt_tokens, prompt.tokens.len(), false).unwrap();
        assert_eq!(generated.tokens, prompt.tokens);
    }
}
