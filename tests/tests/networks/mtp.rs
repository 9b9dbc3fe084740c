//! Drafting with a Qwen3.5's module for multi-token prediction. The tokens are those of transformers, with drafts and without.
//! The module's drafts are those of the module that `tests/oracle/mtp.py` composes from transformers' layers.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::PathBuf;
use std::thread;

use tracewright::bake;
use tracewright::dsl::EntryPoint;
use tracewright::generate::{Certainty, Drafter as _, Evaluator, Generated, MtpDrafter, Network, Sampling};
use tracewright::irpa::Checkpoint;
use tracewright::model::{Speculation, TuningSource};
use tracewright::models::{self, MtpError};
use tracewright::ops::ElementType::F32;
use tracewright::targets::Tuning;
use tracewright::{GenerateOptions, Model, ModelError, NumericOptions, OpenOptions, Plan};
use tracewright_tests::built::{compiler, repository};
use tracewright_tests::{level, tensors};

fn fixture(name: &str) -> PathBuf {
    repository().join("tests/fixtures").join(name)
}

fn options(speculate: Speculation) -> OpenOptions {
    OpenOptions {
        compiler: Some(compiler().unwrap()),
        cache: Some(repository().join(".tracewright/cache")),
        target: Some(level::target()),
        numeric: NumericOptions { dtype: Some(F32), ..NumericOptions::default() },
        tuning: Some(TuningSource::Given(Tuning::default())),
        context: Some(96),
        chunk: Some(4),
        speculate,
        ..OpenOptions::default()
    }
}

fn answer(model: &Model, prompt: &[u32], sampling: Sampling) -> Generated {
    let options =
        GenerateOptions { max_tokens: 48, sampling, ignore_eos: true, ..GenerateOptions::default() };
    model.continue_prompt(prompt).options(options).complete().unwrap().generated
}

fn golden() -> Vec<u8> {
    fs::read(fixture("mtp").join("mtp.safetensors")).unwrap()
}

/// The prompts, and the greedy answer of transformers to each.
fn cases(file: &[u8]) -> Vec<(Vec<u32>, Vec<u32>)> {
    let rows = |name: &str, length| {
        let tokens = tensors::tokens(file, name);
        tokens.chunks(length).map(<[u32]>::to_vec).collect::<Vec<_>>()
    };
    rows("prompts", 9).into_iter().zip(rows("answers", 48)).collect()
}

#[test]
fn drafts_of_the_module_change_no_token() {
    let plain = Model::open_with(fixture("mtp"), options(Speculation::Off)).unwrap();
    let drafting = Model::open_with(fixture("mtp"), options(Speculation::Mtp)).unwrap();
    let cases = cases(&golden());
    for (prompt, expected) in &cases {
        let found = answer(&drafting, prompt, Sampling::default());
        assert_eq!(found.tokens, *expected);
        // The module has learned these answers.
        assert!(found.accepted >= 24 && found.decode_steps <= 24, "{found:?}");
        assert!(found.drafted <= 3 * found.decode_steps, "{found:?}");
        assert_eq!(answer(&plain, prompt, Sampling::default()).tokens, *expected);
    }
    for (prompt, _) in &cases {
        for (temperature, seed) in [(0.3, 1), (0.9, 2)] {
            let sampling = Sampling { temperature, seed, ..Sampling::default() };
            let found = answer(&drafting, prompt, sampling.clone());
            assert_eq!(found.tokens, answer(&plain, prompt, sampling).tokens, "{temperature}");
        }
    }
}

#[test]
fn several_texts_draft_in_one_batch() {
    let cases = cases(&golden());
    let model =
        Model::open_with(fixture("mtp"), OpenOptions { slots: 3, ..options(Speculation::Mtp) }).unwrap();
    thread::scope(|scope| {
        for (prompt, expected) in &cases {
            let model = &model;
            scope.spawn(move || {
                let found = answer(model, prompt, Sampling::default());
                assert_eq!(found.tokens, *expected);
                assert!(found.drafted > 0, "{found:?}");
            });
        }
    });
    // A text that begins as an earlier text did, whose state is reused.
    let (prompt, expected) = &cases[0];
    let longer = [&prompt[..], &expected[..20]].concat();
    let options = GenerateOptions { max_tokens: 28, ignore_eos: true, ..GenerateOptions::default() };
    let request = model.continue_prompt(longer).options(options).reuse();
    let found = request.complete().unwrap().generated;
    assert_eq!(found.tokens, expected[20..]);
    assert!(found.accepted > 0, "{found:?}");
}

#[test]
fn drafts_are_those_of_transformers_layers_however_hidden_states_arrive() {
    let file = golden();
    let (text, drafted) = (tensors::tokens(&file, "text"), tensors::tokens(&file, "drafted"));
    let hidden = tensors::floats(&file, "hidden");
    let width = hidden.len() / text.len();
    let folder = fixture("mtp");
    let plan = Plan::new(models::read(&folder, &[]).unwrap(), Some(F32), Some(32), Some(6)).unwrap();
    let trace = plan.record(&plan.with_mtp(EntryPoint::steps(1, 6, 32))).unwrap().trace;
    let checkpoint = plan.named(Checkpoint::open(&folder).unwrap());
    let declared = trace.parameters().unwrap();
    let parameters = |key: &str| {
        let (_, ty) =
            declared.iter().flat_map(tracewright::trace::Parameter::sources).find(|one| one.0 == key)?;
        bake::value(&checkpoint, key, ty)
    };
    let signatures: Vec<_> = trace.entries.iter().map(|&id| trace.function(id).signature()).collect();
    let network = Network::on(Evaluator { trace: &trace, parameters: &parameters }, &signatures).unwrap();
    let show = |drafter: &mut MtpDrafter<'_, _>, range: std::ops::Range<usize>| {
        drafter.observe(range.start, &hidden[range.start * width..range.end * width]);
    };
    let draft = |drafter: &mut MtpDrafter<'_, _>, text: &[u32], most| {
        drafter.draft(text, most, Certainty::Likely).unwrap()
    };
    let last = text.len() - 1;
    // The network has read all tokens but the last one.
    let drafter = || MtpDrafter::new(network.mtp().unwrap());
    let mut once = drafter();
    assert!(draft(&mut once, &text, 3).is_empty());
    show(&mut once, 0..last);
    assert_eq!(draft(&mut once, &text, 3), drafted);
    assert_eq!(draft(&mut once, &text, 2), drafted[..2]);
    // The text arrives in parts, and drafts come between.
    let mut parts = drafter();
    show(&mut parts, 0..7);
    draft(&mut parts, &text[..8], 3);
    // The network verifies three drafts, of which it rejects two: their hidden states are not those of the text.
    parts.observe(7, &vec![0.5; 4 * width]);
    show(&mut parts, 7..9);
    draft(&mut parts, &text[..10], 1);
    show(&mut parts, 9..last);
    assert_eq!(draft(&mut parts, &text, 3), drafted);
    // Another text takes the place of this one, and this one comes back.
    show(&mut parts, 0..4);
    draft(&mut parts, &[1, 2, 3, 4, 5], 3);
    show(&mut parts, 0..last);
    assert_eq!(draft(&mut parts, &text, 3), drafted);
}

#[test]
fn a_model_without_the_module_is_refused() {
    let refused = |name: &str| match Model::open_with(fixture(name), options(Speculation::Mtp)) {
        Err(ModelError::Mtp { source, .. }) => source,
        other => panic!("{name}: {:?}", other.err()),
    };
    assert_eq!(refused("qwen3"), MtpError::Family);
    assert_eq!(refused("qwen3_5"), MtpError::Weights);
}
