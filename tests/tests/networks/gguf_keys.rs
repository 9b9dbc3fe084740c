//! The keys of llama.cpp's loader, and what Tracewright does with each: `tests/fixtures/gguf-keys.tsv`.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tracewright::errors::WithCauses;
use tracewright::generate::{Tokenizer, gguf_text};
use tracewright::models;
use tracewright_tests::built::repository;

#[path = "../../../irpa/tests/support/gguf_parts.rs"]
mod gguf_parts;

use gguf_parts::{ARRAY, BOOL, F32, GgufParts, I32, TEXT, U32, array, text};

const U8: u32 = 0;
const U16: u32 = 2;

fn fixture(name: &str) -> PathBuf {
    repository().join("tests/fixtures/gguf").join(format!("{name}.gguf"))
}

/// The type and the bytes of a value such as `u32:7` or `[i32]:1,2`.
fn value(written: &str) -> (u32, Vec<u8>) {
    let (kind, value) = written.split_once(':').unwrap();
    let one = |kind: &str, value: &str| match kind {
        "u8" => (U8, vec![value.parse().unwrap()]),
        "u16" => (U16, value.parse::<u16>().unwrap().to_le_bytes().to_vec()),
        "u32" => (U32, value.parse::<u32>().unwrap().to_le_bytes().to_vec()),
        "i32" => (I32, value.parse::<i32>().unwrap().to_le_bytes().to_vec()),
        "f32" => (F32, value.parse::<f32>().unwrap().to_le_bytes().to_vec()),
        "bool" => (BOOL, vec![value.parse().unwrap()]),
        "text" => (TEXT, text(value)),
        other => panic!("{other}"),
    };
    match kind.strip_prefix('[').and_then(|kind| kind.strip_suffix(']')) {
        Some(kind) => {
            let values: Vec<_> = value.split(',').map(|value| one(kind, value).1).collect();
            (ARRAY, array(one(kind, value.split(',').next().unwrap()).0, &values))
        }
        None => one(kind, value),
    }
}

/// The files that Tracewright makes from the metadata, or the errors about them.
fn outcome(path: &Path) -> [String; 5] {
    let read = match models::read(path, &[]) {
        Ok(model) => format!("{:?}", model.sizes()),
        Err(error) => WithCauses(&error).to_string(),
    };
    let config = models::gguf::config_json(path).unwrap_or_else(|error| WithCauses(&error).to_string());
    let [tokenizer, tokens, generation] =
        ["tokenizer.json", "tokenizer_config.json", "generation_config.json"].map(|name| {
            match gguf_text(path, name) {
                Ok(text) => format!("{text:?}"),
                Err(error) => WithCauses(&error).to_string(),
            }
        });
    [read, config, tokenizer, tokens, generation]
}

#[test]
fn each_key_of_llama_cpp_is_used_or_refused_or_irrelevant() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let table = std::fs::read_to_string(repository().join("tests/fixtures/gguf-keys.tsv")).unwrap();
    let (mut seen, mut wrong, mut states) = (BTreeSet::new(), Vec::new(), [0; 3]);
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [key, state, name, written, reason @ ..] = &columns[..] else { panic!("{line}") };
        assert!(seen.insert(key.to_string()), "{key} twice");
        let mut parts = GgufParts::read(&fixture(name));
        let architecture = parts.keys.iter().find(|(key, ..)| key == "general.architecture").unwrap();
        let key = key.replace("%s", std::str::from_utf8(&architecture.2[8..]).unwrap());
        parts.write(&path);
        let before = outcome(&path);
        let (kind, bytes) = value(written);
        parts.set(&key, kind, bytes);
        parts.write(&path);
        let after = outcome(&path);
        let names = after.iter().any(|text| text.contains(&format!("`{key}`")));
        let (place, is_so) = match *state {
            "used" => (0, after != before),
            "refused" => (1, names && after != before),
            "irrelevant" => (2, after == before && !reason.is_empty()),
            other => panic!("{key}: {other}"),
        };
        states[place] += 1;
        if !is_so {
            let changed: Vec<_> = after.iter().zip(&before).filter(|(a, b)| a != b).collect();
            wrong.push(format!("{key} with {written} in {name} is not {state}: {changed:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), seen.len(), wrong.join("\n"));
    assert_eq!((seen.len(), states), (202, states));
    println!("{} used, {} refused, {} irrelevant", states[0], states[1], states[2]);
}

/// `tests/oracle/gguf_pre.py` writes the tokens of llama.cpp: those of one vocabulary with other values of
/// `tokenizer.ggml.pre`, and those of a vocabulary like Gemma 4's.
#[test]
fn further_tokenizers_are_those_of_llama_cpp() {
    let golden = std::fs::read(repository().join("tests/fixtures/gguf/tokens-pre.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_slice(&golden).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let check = |name: &str, path: &Path, texts: &serde_json::Value, tokens: &serde_json::Value| {
        let tokenizer = Tokenizer::load(path).unwrap().unwrap();
        for (text, tokens) in texts.as_array().unwrap().iter().zip(tokens.as_array().unwrap()) {
            let text = text.as_str().unwrap();
            let found = serde_json::json!(tokenizer.encode(text).unwrap());
            assert_eq!(found, *tokens, "{name}: {text:?}");
        }
        tokenizer
    };
    let mut parts = GgufParts::read(&fixture("tokens-gpt-2"));
    for (pre, tokens) in golden["tokens"].as_object().unwrap() {
        parts.set("tokenizer.ggml.pre", TEXT, text(pre));
        parts.write(&path);
        check(pre, &path, &golden["texts"], tokens);
    }
    let texts = &golden["gemma_texts"];
    let gemma = check("gemma4", &fixture("tokens-gemma4"), texts, &golden["gemma4"]);
    for text in texts.as_array().unwrap().iter().filter_map(|text| text.as_str()) {
        let tokens = gemma.encode(text).unwrap();
        // A mark of a space cannot be told from a space, and special tokens are left out.
        if !text.contains(['▁', '<']) {
            assert_eq!(gemma.decode(&tokens).unwrap(), text);
        }
    }
}
