//! Adapters that PEFT wrote, judged by what transformers answers after `merge_and_unload` (`tests/oracle/lora.py`).
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use tracewright::Plan;
use tracewright::bake::{self, BakeOptions};
use tracewright::build::cached_archive;
use tracewright::irpa::ModelFiles;
use tracewright::models::{self, LoraFile, fit};
use tracewright::ops::ElementType;
use tracewright_tests::built::repository;
use tracewright_tests::golden::{
    BOUND, BuildOptions, Comparison, Golden, STEPS, build, check, check_evaluated,
};

fn folder(name: &str) -> PathBuf {
    repository().join("tests/fixtures/lora").join(name)
}

/// The folders, each with an adapter and a golden.
fn names() -> Vec<String> {
    let folders = fs::read_dir(repository().join("tests/fixtures/lora")).unwrap().flatten();
    let mut names: Vec<String> = folders.map(|folder| folder.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The model of a golden, with the adapter.
fn golden(name: &str) -> Golden {
    let json: Json = serde_json::from_slice(&fs::read(folder(name).join("golden.json")).unwrap()).unwrap();
    let base = repository().join("tests/fixtures").join(json["base"].as_str().unwrap());
    Golden::within(&folder(name), &base).unwrap()
}

fn options(golden: &Golden, adapter: &Path, scale: f32) -> BuildOptions {
    BuildOptions { adapters: vec![LoraFile { path: adapter.into(), scale }], ..BuildOptions::of(golden) }
}

fn evaluated(name: &str, adapter: &str, scale: f32) -> Comparison {
    let golden = golden(name);
    let options = options(&golden, &folder(name).join(adapter), scale);
    let report = check_evaluated(&golden, &options, STEPS, BOUND, Ok);
    report.unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn merged_adapters_give_the_logits_of_peft() {
    let names = names();
    assert!(names.len() > 12);
    for name in names {
        for adapter in ["", "adapter.gguf"] {
            if folder(&name).join(adapter).exists() {
                let report = evaluated(&name, adapter, 1.0);
                let _ = writeln!(std::io::stderr(), "{name} {adapter}: {report}");
                assert!(report.passes(), "{name} {adapter}: {report}");
            }
        }
    }
}

/// Another scale, and an adapter that is added twice, would not pass.
#[test]
fn the_scale_matters() {
    assert!(!evaluated("llama", "", 0.99).passes());
    let golden = golden("llama");
    let half = || LoraFile { path: folder("llama"), scale: 0.5 };
    let options = BuildOptions { adapters: vec![half(), half()], ..BuildOptions::of(&golden) };
    let report = check_evaluated(&golden, &options, STEPS, BOUND, Ok).unwrap();
    assert!(report.passes(), "{report}");
}

/// The archive has the merged weights, too.
#[test]
fn archives_have_the_merged_weights() {
    for name in ["llama-dora", "gpt2", "phi3-split", "gguf-quantized"] {
        let golden = golden(name);
        let subject = build(&golden.model, &options(&golden, &folder(name), 1.0), STEPS, Ok).unwrap();
        let report = check(&golden, &subject).unwrap();
        let _ = writeln!(std::io::stderr(), "{name} in IREE: {report}");
        assert!(report.passes(), "{name} in IREE: {report}");
    }
}

/// The cache has an archive for each adapter and scale, and another one after the file has changed.
#[test]
fn archives_of_other_adapters_are_not_taken() {
    let (cache, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(folder("llama").join(name), copy.path().join(name)).unwrap();
    }
    let bakes = |scales: &[f32]| {
        let adapters: Vec<_> =
            scales.iter().map(|&scale| LoraFile { path: copy.path().into(), scale }).collect();
        let files = ModelFiles::at(golden("llama").model);
        let fitted = fit::open(models::read, &files, &[]).unwrap().with_adapters(&files, &adapters).unwrap();
        let plan = Plan::new(fitted.network, Some(ElementType::F32), Some(24), Some(8)).unwrap();
        let parameters = plan.trace().unwrap().trace.parameters().unwrap();
        let (_, baked) = cached_archive(&fitted.checkpoint, &parameters, cache.path(), |path| {
            Ok(bake::bake(&fitted.checkpoint, &parameters, &[], path, BakeOptions::default())?)
        })
        .unwrap();
        baked.is_some()
    };
    for scales in [&[][..], &[1.0], &[0.5], &[0.5, 0.5]] {
        assert!(bakes(scales), "{scales:?}");
        assert!(!bakes(scales), "{scales:?}");
    }
    let weights = copy.path().join("adapter_model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    assert!(bakes(&[1.0]));
    let config = copy.path().join("adapter_config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("\"lora_alpha\": 8", "\"lora_alpha\": 9")).unwrap();
    assert!(bakes(&[1.0]));
}
