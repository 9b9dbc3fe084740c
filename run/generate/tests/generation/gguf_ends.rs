//! Compares the special tokens of GGUF vocabularies with llama.cpp, where the file gives no token
//! types or unusual token types.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tracewright_generate::{Tokenizer, generation_defaults, stop_tokens};

/// The metadata of a GGUF file, as bytes.
#[derive(Default)]
struct Metadata {
    count: u64,
    bytes: Vec<u8>,
}

impl Metadata {
    fn key(&mut self, key: &str, kind: u32, value: &[u8]) {
        self.count += 1;
        self.bytes.extend(text(key));
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend(value);
    }

    fn list(&mut self, key: &str, kind: u32, values: &[Vec<u8>]) {
        let head = [&kind.to_le_bytes()[..], &(values.len() as u64).to_le_bytes()].concat();
        self.key(key, 9, &[head, values.concat()].concat());
    }
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// Writes a GGUF file that contains only a vocabulary.
fn write(vocabulary: &Value, path: &Path) {
    let mut metadata = Metadata::default();
    let model = vocabulary["model"].as_str().unwrap();
    let tokens = vocabulary["tokens"].as_array().unwrap();
    let texts = |list: &[Value]| list.iter().map(|one| text(one.as_str().unwrap())).collect::<Vec<_>>();
    metadata.key("general.architecture", 8, &text("llama"));
    if let Some(name) = vocabulary["name"].as_str() {
        metadata.key("general.name", 8, &text(name));
    }
    metadata.key("tokenizer.ggml.model", 8, &text(model));
    metadata.list("tokenizer.ggml.tokens", 8, &texts(tokens));
    if let Some(types) = vocabulary["types"].as_array() {
        let types = types.iter().map(|kind| (kind.as_i64().unwrap() as i32).to_le_bytes().to_vec());
        metadata.list("tokenizer.ggml.token_type", 5, &types.collect::<Vec<_>>());
    }
    if model == "gpt2" {
        metadata.key("tokenizer.ggml.pre", 8, &text("gpt-2"));
        metadata.list("tokenizer.ggml.merges", 8, &[text("a b")]);
    } else {
        metadata.list("tokenizer.ggml.scores", 6, &vec![0f32.to_le_bytes().to_vec(); tokens.len()]);
    }
    if let Some(tokens) = vocabulary["suppress"].as_array() {
        let ids = tokens.iter().map(|id| (id.as_i64().unwrap() as i32).to_le_bytes().to_vec());
        metadata.list("tokenizer.ggml.suppress_tokens", 5, &ids.collect::<Vec<_>>());
    }
    for (key, id) in vocabulary["keys"].as_object().unwrap() {
        let id = id.as_u64().unwrap() as u32;
        metadata.key(&format!("tokenizer.ggml.{key}_token_id"), 4, &id.to_le_bytes());
    }
    let head = [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes(), &metadata.count.to_le_bytes()];
    fs::write(path, [head.concat(), metadata.bytes].concat()).unwrap();
}

#[test]
fn special_tokens_and_ends_are_those_of_llama_cpp() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tokenizers/gguf_ends.json");
    let golden: Value = serde_json::from_str(&fs::read_to_string(golden).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut wrong = Vec::new();
    let mut compare = |what: String, found: Value, expected: &Value| {
        if found != *expected {
            wrong.push(format!("{what}\n  found    {found}\n  expected {expected}"));
        }
    };
    for case in golden["cases"].as_array().unwrap() {
        let name = &case["name"];
        write(&case["vocabulary"], &path);
        let tokenizer = Tokenizer::load(&path).unwrap().unwrap();
        for pair in case["texts"].as_array().unwrap() {
            let text = pair[0].as_str().unwrap();
            let found = tokenizer.encode_plain(text).unwrap();
            compare(format!("{name}: {text:?}"), json!(found), &pair[1]);
        }
        compare(format!("{name}: ends"), json!(stop_tokens(&path).unwrap()), &case["ends"]);
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn suppressed_tokens_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let suppress = json!([2, 99, -1, 0]);
    let vocabulary =
        json!({"model": "gpt2", "tokens": ["a", "b", "ab"], "keys": {"eos": 1}, "suppress": suppress});
    write(&vocabulary, &path);
    let defaults = generation_defaults(&path).unwrap();
    assert_eq!(defaults.options.sampling.rules.suppress_tokens, [2, 0]);
    assert_eq!((stop_tokens(&path).unwrap(), defaults.unapplied), (vec![1], Vec::new()));
}
