//! Compares the options that a `generation_config.json` sets with Hugging Face transformers.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tracewright_generate::{
    GenerateError, GenerationDefaults, Sampler, Sampling, TextBounds, generation_defaults,
};

fn read(file: &Value) -> Result<GenerationDefaults, GenerateError> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("generation_config.json"), file.to_string()).unwrap();
    generation_defaults(folder.path())
}

fn tokens(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect()
}

/// Compares the probabilities with which tokens are drawn with transformers' logits, in which
/// `null` is a forbidden token.
fn compare(step: &Value, found: &[(u32, f64)]) -> Result<(), String> {
    let scores = step["scores"].as_array().unwrap().iter().map(Value::as_f64);
    let expected: Vec<(u32, f64)> =
        (0..).zip(scores).filter_map(|(token, score)| Some((token, score?))).collect();
    let most = expected.iter().map(|(_, score)| *score).fold(f64::NEG_INFINITY, f64::max);
    let expected: Vec<(u32, f64)> =
        expected.into_iter().map(|(token, score)| (token, score - most)).collect();
    let sum: f64 = expected.iter().map(|(_, score)| score.exp()).sum();
    let probabilities: Vec<(u32, f64)> =
        expected.iter().map(|&(token, score)| (token, score.exp() / sum)).collect();
    let is_near = found.len() == probabilities.len()
        && found.iter().zip(&probabilities).all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-4);
    if is_near { Ok(()) } else { Err(format!("found {found:?}\n  expected {probabilities:?}")) }
}

#[test]
fn logits_are_those_of_transformers() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/generation_config.json");
    let golden: Value = serde_json::from_str(&fs::read_to_string(golden).unwrap()).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    let mut wrong = Vec::new();
    for case in cases {
        let GenerationDefaults { options, max_new_tokens, unapplied } = read(&case["file"]).unwrap();
        assert!(unapplied.is_empty(), "{unapplied:?}");
        let prompt = tokens(&case["prompt"]);
        let most = case["most"].as_u64().unwrap() as usize;
        assert_eq!(max_new_tokens.unwrap_or(most), most);
        // Greedy decoding chooses the largest logit, and sampling draws from all logits.
        let is_greedy = options.sampling.temperature == 0.0;
        let temperature = if is_greedy { 1.0 } else { options.sampling.temperature };
        let sampling = Sampling { temperature, ..options.sampling.clone() };
        let bounds =
            TextBounds { prompt: prompt.len(), end: Some(prompt.len() + most), stop_tokens: vec![1, 4] };
        let sampler = |sampling: &Sampling| {
            let mut sampler = Sampler::new(sampling).unwrap();
            sampler.begin(bounds.clone());
            sampler
        };
        let mut seen = prompt.clone();
        for step in case["steps"].as_array().unwrap() {
            let logits: Vec<f32> =
                step["logits"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
            let found = sampler(&sampling).probabilities(&seen, &logits).unwrap();
            if let Err(said) = compare(step, &found) {
                wrong.push(format!("{}, {seen:?}\n  {said}", case["file"]));
            }
            if is_greedy {
                let best =
                    found.iter().copied().reduce(|best, next| if next.1 > best.1 { next } else { best });
                assert_eq!(sampler(&options.sampling).choose(&seen, &logits).unwrap(), best.unwrap().0);
            }
            seen.push(step["token"].as_u64().unwrap() as u32);
        }
    }
    assert!(wrong.is_empty(), "{} wrong steps\n{}", wrong.len(), wrong[..wrong.len().min(12)].join("\n"));
}

#[test]
fn keys_that_are_not_applied_are_named() {
    let silent = json!({
        "_from_model_config": true, "bos_token_id": 0, "eos_token_id": [1, 4], "pad_token_id": 0, "use_cache": true,
        "transformers_version": "5.23.0", "num_beams": 1, "guidance_scale": null, "early_stopping": true,
        "cache_implementation": "hybrid", "token_healing": false, "penalty_alpha": 0.0,
    });
    let defaults = read(&silent).unwrap();
    assert_eq!(defaults, GenerationDefaults::default());
    let named = json!({
        "num_beams": 4, "guidance_scale": 1.5, "watermarking_config": {"bias": 2.0}, "penalty_alpha": 0.6,
        "chat_format": "chatml", "max_time": 3,
    });
    let mut keys: Vec<String> = read(&named).unwrap().unapplied.into_iter().map(|(key, _)| key).collect();
    keys.sort();
    assert_eq!(
        keys,
        ["chat_format", "guidance_scale", "max_time", "num_beams", "penalty_alpha", "watermarking_config"]
    );
}

#[test]
fn lengths_and_stop_strings() {
    let options = |file| read(&file).unwrap().options;
    assert_eq!(options(json!({"max_new_tokens": 7})).max_tokens, 7);
    assert_eq!(options(json!({"max_length": 64})).max_length, Some(64));
    assert_eq!(options(json!({"max_length": 20})).max_length, None, "the default value of transformers");
    assert_eq!(options(json!({"max_length": 64, "max_new_tokens": 7})).max_length, None);
    assert_eq!(options(json!({"stop_strings": "\n"})).stop, ["\n"]);
    assert_eq!(options(json!({"stop_strings": ["a", "b"]})).stop, ["a", "b"]);
    let sampling = options(json!({"do_sample": false, "temperature": 0.6, "top_k": 20})).sampling;
    assert_eq!((sampling.temperature, sampling.top_k), (0.0, 20));
    assert_eq!(options(json!({"do_sample": true})).sampling.top_k, 50);
}

#[test]
fn values_of_another_type_are_errors() {
    for (key, value, expected) in [
        ("suppress_tokens", json!([1, -1]), "a token id or a list of token ids"),
        ("repetition_penalty", json!("1.1"), "a number"),
        ("no_repeat_ngram_size", json!(1.5), "an integer from 0"),
        ("bad_words_ids", json!([1]), "a list of lists of token ids"),
        ("sequence_bias", json!([[[1], "x"]]), "a list of pairs of token ids and a number"),
        ("stop_strings", json!([1]), "a text or a list of texts"),
        ("do_sample", json!("yes"), "true or false"),
    ] {
        let said = read(&json!({ key: value })).unwrap_err().to_string();
        assert!(said.ends_with(&format!("is `{value}`, expected {expected}")), "{said}");
    }
}
