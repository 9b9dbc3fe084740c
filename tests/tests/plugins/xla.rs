//! Networks that XLA runs, through the plugin for the CPU: the tokens are those of transformers, and no Python runs.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tracewright::ops::ElementType::Bf16;
use tracewright::pjrt::PjrtError;
use tracewright::targets::{DeviceKind, DeviceName};
use tracewright::{GenerateOptions, Model, ModelError, OpenOptions};
use tracewright_tests::built::{children, plugin, repository};
use tracewright_tests::golden::{BOUND, Golden};
use tracewright_tests::in_xla::{options, state_bytes};
use tracewright_tests::long;

/// As the goldens were made: 48 greedy tokens, whatever they are.
fn greedy() -> GenerateOptions {
    GenerateOptions { max_tokens: 48, ignore_eos: true, ..GenerateOptions::default() }
}

/// Prompts of a shipped model's golden, and the logits after the tokens of two. The short form takes every fourth prompt.
fn shipped(name: &str) {
    let Some(plugin) = plugin() else { return };
    let golden = Golden::shipped(name).unwrap();
    assert_eq!(golden.prompts.len(), 64);
    let longest = golden.prompts.iter().map(|prompt| prompt.prompt_tokens.len() + 48).max().unwrap();
    let sizes = OpenOptions { context: Some(longest.next_power_of_two()), score: true, ..options(&plugin) };
    let model = Model::open_with(&golden.model, sizes).unwrap();
    let state = state_bytes(&model);
    for (number, prompt) in golden.prompts.iter().enumerate().step_by(if long::is_wanted() { 1 } else { 4 }) {
        let request = model.continue_prompt(prompt.prompt_tokens.clone()).options(greedy());
        let completion = request.complete().unwrap();
        assert_eq!(completion.generated.tokens, prompt.tokens, "{name}: prompt {number}");
        // A token and a logit for each step. State and weights stay on the device.
        assert_eq!(completion.transfers.device_to_host, 48 * 8, "{name}: prompt {number}");
        if number > 0 {
            let up = completion.transfers.host_to_device;
            assert!(up < state / 4, "{name}: prompt {number} uploads {up} bytes, and the state has {state}");
        }
    }
    for number in [0, golden.prompts.len() - 1] {
        let reference = golden.reference(number).unwrap();
        let found = model.score(&golden.prompts[number].fed()).unwrap();
        for (position, row) in found.iter().enumerate() {
            let error = reference.error(position, row);
            assert!(error <= BOUND, "{name}: prompt {number}, position {position}: {error:e}");
        }
    }
    assert_eq!(children(), Vec::<String>::new(), "a process was started");
    let mapped = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    assert!(
        !mapped.contains("libpython") && !mapped.contains("iree_compiler"),
        "Python or a compiler is loaded"
    );
}

#[test]
fn the_shipped_model_is_token_exact() {
    shipped("demo");
}

#[test]
fn the_shipped_gemma_3_is_token_exact() {
    shipped("demo-gemma3");
}

/// A real model in a GGUF file, whose blocks are decoded to f32, and not to integers. The long form runs all 16 prompts.
#[test]
fn smollm2_is_token_exact() {
    let (Some(plugin), Some(golden)) = (plugin(), Golden::real("smollm2")) else { return };
    let cache = tempfile::tempdir().unwrap();
    let sizes =
        OpenOptions { context: Some(golden.context), cache: Some(cache.path().into()), ..options(&plugin) };
    let model = Model::open_with(&golden.model, sizes).unwrap();
    let prompts = golden.prompts.iter().take(if long::is_wanted() { golden.prompts.len() } else { 1 });
    for (number, prompt) in prompts.enumerate() {
        let request = model.continue_prompt(prompt.prompt_tokens.clone()).options(greedy());
        assert_eq!(request.complete().unwrap().generated.tokens, prompt.tokens, "prompt {number}");
    }
}

/// Sequences of a batch get the tokens that each gets alone, also where they join while others run.
#[test]
fn sequences_of_a_batch_do_not_change_each_other() {
    let Some(plugin) = plugin() else { return };
    let golden = Golden::shipped("demo").unwrap();
    let sizes = OpenOptions { context: Some(256), slots: 3, ..options(&plugin) };
    let model = Model::open_with(&golden.model, sizes).unwrap();
    let prompts: Vec<_> =
        golden.prompts.iter().filter(|prompt| prompt.prompt_tokens.len() < 200).take(7).collect();
    std::thread::scope(|scope| {
        for prompt in &prompts {
            scope.spawn(|| {
                let request = model.continue_prompt(prompt.prompt_tokens.clone()).options(greedy());
                assert_eq!(request.complete().unwrap().generated.tokens, prompt.tokens);
            });
        }
    });
}

/// A second start takes the executables from the cache, and compiles damaged ones again.
#[test]
fn executables_come_from_the_cache() {
    let Some(plugin) = plugin() else { return };
    let golden = Golden::shipped("demo").unwrap();
    let cache = tempfile::tempdir().unwrap();
    let folder = cache.path().join("executables");
    let prompt = &golden.prompts[0];
    let start = || {
        let cache = Some(cache.path().to_owned());
        let sizes = OpenOptions { context: Some(512), cache, ..options(&plugin) };
        let model = Model::open_with(&golden.model, sizes).unwrap();
        let request = model.continue_prompt(prompt.prompt_tokens.clone()).options(greedy());
        assert_eq!(request.complete().unwrap().generated.tokens, prompt.tokens);
        model.info().build.as_ref().unwrap().compile
    };
    let entries = || -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
        let files = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
        let read = |path: &Path| (fs::read(path).unwrap(), path.metadata().unwrap().modified().unwrap());
        files.map(|path| (path.clone(), read(&path))).collect()
    };
    let cold = start();
    let compiled = entries();
    assert!(compiled.len() >= 2, "{:?}", compiled.keys());
    let warm = start();
    assert_eq!(entries(), compiled, "an executable in the cache was written again");
    assert!(warm < cold / 2, "the second start takes {warm:?}, the first {cold:?}");

    // A cut file, a changed byte, and bytes with the right hash that XLA cannot load.
    for (number, (path, (bytes, _))) in compiled.iter().enumerate() {
        let (last, rest) = bytes.split_last().unwrap();
        let damaged = match number % 3 {
            0 => [&blake3::hash(b"no executable").as_bytes()[..], b"no executable"].concat(),
            1 => bytes[..bytes.len() / 2].to_vec(),
            _ => [rest, &[!last]].concat(),
        };
        fs::write(path, damaged).unwrap();
    }
    start();
    let repaired = entries();
    assert_eq!(repaired.keys().collect::<Vec<_>>(), compiled.keys().collect::<Vec<_>>());
    start();
    assert_eq!(entries(), repaired, "a damaged executable was not replaced");
}

/// The checkpoint stores bf16, and the network computes in it: no weight is written to the cache.
#[test]
fn weights_of_the_checkpoints_type_are_not_written() {
    let Some(plugin) = plugin() else { return };
    let cache = tempfile::tempdir().unwrap();
    let golden = Golden::shipped("demo").unwrap();
    assert_eq!(golden.storage, Bf16);
    let mut options = OpenOptions { context: Some(64), cache: Some(cache.path().into()), ..options(&plugin) };
    options.numeric.dtype = Some(Bf16);
    let model = Model::open_with(&golden.model, options).unwrap();
    let completion = model.continue_prompt([5, 17, 3]).options(greedy()).complete().unwrap();
    assert_eq!(completion.generated.tokens.len(), 48);
    let weights = |path: PathBuf| fs::metadata(path.join("model.safetensors")).map_or(0, |file| file.len());
    let written: u64 = fs::read_dir(cache.path().join("archives"))
        .into_iter()
        .flatten()
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    assert!(written < weights(golden.model.clone()) / 2, "{written} bytes are written");
}

#[test]
fn mistakes_are_told_before_anything_slow() {
    let Some(plugin) = plugin() else { return };
    let demo = repository().join("demo");
    let refused = |options: OpenOptions| Model::open_with(&demo, options).err().unwrap();
    let error = refused(options(Path::new("no/such/plugin.so")));
    assert!(matches!(error, ModelError::Plugin(PjrtError::Library { .. })), "{error}");
    let other = DeviceName { kind: DeviceKind::Cuda, ordinal: 0 };
    let error = refused(OpenOptions { device: Some(other), ..options(&plugin) });
    assert_eq!(
        error.to_string(),
        "the plugin's platform is `cpu`, but the device is `cuda`; name a plugin for this device"
    );
    let far = DeviceName { ordinal: 99, ..DeviceName::CPU };
    let error = refused(OpenOptions { device: Some(far), ..options(&plugin) });
    assert!(matches!(error, ModelError::Plugin(PjrtError::NoDevice { ordinal: 99, .. })), "{error}");
    let mesh = Some("model=5".parse().unwrap());
    let error = refused(OpenOptions { mesh, ..options(&plugin) });
    assert!(matches!(error, ModelError::Xla(_)), "{error}");
}
