//! State of sequences that XLA runs. The state stays on the device when a sequence takes the state of another, and when
//! a call serves only some sequences. A file can store the state.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use tracewright::generate::{GenerateError, SavedFault, SavedSequence};
use tracewright::model::Completion;
use tracewright::ops::ElementType::F32;
use tracewright::{GenerateOptions, Model, ModelError, OpenOptions};
use tracewright_tests::built::plugin;
use tracewright_tests::embedding;
use tracewright_tests::golden::{Golden, GoldenPrompt, max_error};
use tracewright_tests::in_xla::{options, state_bytes};

/// The golden's text for a prompt, generated in a slot that may take the state of another slot.
fn generated(model: &Model, prompt: &GoldenPrompt) -> Completion {
    let greedy = GenerateOptions { max_tokens: 48, ignore_eos: true, ..GenerateOptions::default() };
    let request = model.continue_prompt(prompt.prompt_tokens.clone()).options(greedy).reuse();
    let completion = request.complete().unwrap();
    assert_eq!(completion.generated.tokens, prompt.tokens);
    completion
}

/// The second text takes the state of the first from
/// another slot, and each decode call serves one slot of four.
#[test]
fn state_stays_on_the_device() {
    let Some(plugin) = plugin() else { return };
    for name in ["demo", "demo-gemma3"] {
        let golden = Golden::shipped(name).unwrap();
        let model =
            Model::open_with(&golden.model, OpenOptions { context: Some(256), slots: 4, ..options(&plugin) });
        let model = model.unwrap();
        let build = model.info().build.as_ref().unwrap();
        let names: Vec<&str> = build.signatures.iter().map(|signature| &*signature.name).collect();
        for part in ["prefill_1", "decode_1", "decode_2", "decode"] {
            assert!(names.contains(&part), "{names:?}");
        }
        let long = |prompt: &&GoldenPrompt| (40..200).contains(&prompt.prompt_tokens.len());
        let prompt = golden.prompts.iter().find(long).unwrap();
        let length = prompt.prompt_tokens.len();
        let first = generated(&model, prompt);
        assert_eq!(first.generated.prefill_tokens, length);
        let again = generated(&model, prompt);
        assert_eq!(again.generated.prefill_tokens, 1, "{name}: the first text's state was computed again");
        let state = state_bytes(&model);
        for completion in [first, again] {
            let transfers = completion.transfers;
            assert_eq!(transfers.device_to_host, 48 * 8, "{name}: state was copied to the host");
            assert!(transfers.host_to_device < state / 4, "{name}: {} of {state}", transfers.host_to_device);
        }
    }
}

/// The network computes in the type of the checkpoint, so no weight is in an archive.
#[test]
fn a_saved_sequence_continues_in_another_process() {
    let Some(plugin) = plugin() else { return };
    let golden = Golden::shipped("demo").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.twseq");
    let open = |dtype| {
        let mut sizes = OpenOptions { context: Some(256), ..options(&plugin) };
        sizes.numeric.dtype = dtype;
        Model::open_with(&golden.model, sizes).unwrap()
    };
    for dtype in [None, Some(F32)] {
        let prompt = &golden.prompts[0];
        let greedy = || GenerateOptions { max_tokens: 48, ignore_eos: true, ..GenerateOptions::default() };
        let continued = |model: &Model, prompt: Vec<u32>| {
            model.continue_prompt(prompt).options(greedy()).reuse().complete().unwrap().generated
        };
        let model = open(dtype);
        let text = continued(&model, prompt.prompt_tokens.clone());
        model.save(&prompt.prompt_tokens).unwrap().write(&file).unwrap();
        drop(model);
        let model = open(dtype);
        model.load(SavedSequence::read(&file).unwrap()).unwrap();
        let again = continued(&model, prompt.prompt_tokens.clone());
        assert_eq!(again.tokens, text.tokens);
        assert_eq!(again.prefill_tokens, 1, "the saved state was computed again");
        if dtype == Some(F32) {
            assert_eq!(text.tokens, prompt.tokens);
        }
    }
    let error = open(None).load(SavedSequence::read(&file).unwrap()).unwrap_err();
    let fault = |fault: &SavedFault| matches!(fault, SavedFault::Model { .. } | SavedFault::State { .. });
    assert!(
        matches!(&error, ModelError::Generate(GenerateError::Saved { fault: found, .. }) if fault(found)),
        "{error}"
    );
}

#[test]
fn embeddings_are_those_of_sentence_transformers() {
    let Some(plugin) = plugin() else { return };
    let golden = embedding::Golden::fixture("embeddinggemma").unwrap();
    let model = Model::open_with(&golden.model, options(&plugin)).unwrap();
    let (_, texts) = golden.texts.split_last().unwrap();
    for (number, text) in texts.iter().enumerate() {
        let found = model.embed(&[&text.text], text.prompt.as_deref()).unwrap();
        let error = max_error(&found[0], &golden.vector(number).unwrap());
        assert!(error < 1e-4, "text {number}: {error:e}");
    }
}

/// A greedy text starts each decode call early. Texts that then go on otherwise are those of a new model.
#[test]
fn a_call_that_started_early_harms_no_other_text() {
    let Some(plugin) = plugin() else { return };
    let golden = Golden::shipped("demo").unwrap();
    let open = || {
        let sizes = OpenOptions { context: Some(128), ..options(&plugin) };
        Model::open_with(&golden.model, sizes).unwrap()
    };
    let greedy = || GenerateOptions { max_tokens: 16, ignore_eos: true, ..GenerateOptions::default() };
    let continued = |model: &Model, tokens: &[u32], options| {
        model.continue_prompt(tokens.to_vec()).options(options).reuse().complete().unwrap().generated
    };
    let model = open();
    let prompt = golden.prompts.iter().find(|prompt| (8..64).contains(&prompt.prompt_tokens.len())).unwrap();
    let first = continued(&model, &prompt.prompt_tokens, greedy());
    assert_eq!(first.tokens, prompt.tokens[..16]);
    // The same beginning, and then another token than the most likely one.
    let mut other = [&prompt.prompt_tokens[..], &first.tokens[..4]].concat();
    other.push((first.tokens[4] + 1) % 1000);
    let sampled = || {
        let mut options = greedy();
        options.sampling.temperature = 1.5;
        options
    };
    for (tokens, options) in [(&other, greedy()), (&other, sampled()), (&prompt.prompt_tokens, sampled())] {
        let found = continued(&model, tokens, options.clone());
        assert_eq!(found.tokens, continued(&open(), tokens, options).tokens);
    }
    let again = continued(&model, &prompt.prompt_tokens, greedy());
    assert_eq!(again.tokens, first.tokens);
    // The state has no slot after the last position.
    let long = [&prompt.prompt_tokens[..], &prompt.tokens].concat();
    let rest = GenerateOptions { max_tokens: 128 - long.len(), ..greedy() };
    let (found, fresh) = (continued(&model, &long, rest.clone()), continued(&open(), &long, rest));
    assert_eq!(found.tokens, fresh.tokens);
}
