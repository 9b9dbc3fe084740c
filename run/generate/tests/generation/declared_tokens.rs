//! Compares tokenizers whose configuration declares tokens that `tokenizer.json` lacks with
//! transformers.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tracewright_generate::Tokenizer;

const GOLDEN: &str = "../../tests/fixtures/tokenizers/declared.json";

fn golden() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN);
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Writes the folder of a case, and loads its tokenizer.
fn load(base: &Value, case: &Value) -> Tokenizer {
    let folder = tempfile::tempdir().unwrap();
    let mut tokenizer = base.clone();
    for key in ["added_tokens", "normalizer", "post_processor"] {
        tokenizer[key] = case[key].clone();
    }
    for (word, id) in case["words"].as_array().unwrap().iter().zip(256..) {
        tokenizer["model"]["vocab"][word.as_str().unwrap()] = id.into();
    }
    fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    for (name, content) in case["files"].as_object().unwrap() {
        fs::write(folder.path().join(name), content.to_string()).unwrap();
    }
    Tokenizer::load(folder.path()).unwrap().unwrap()
}

#[test]
fn declared_tokens_are_those_of_transformers() {
    let golden = golden();
    let texts: Vec<&str> =
        golden["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let mut wrong = Vec::new();
    let cases = golden["cases"].as_array().unwrap();
    for case in cases {
        let tokenizer = load(&golden["base"], case);
        let plain: Vec<_> = texts.iter().map(|text| tokenizer.encode_plain(text).unwrap()).collect();
        let whole: Vec<_> = texts.iter().map(|text| tokenizer.encode(text).unwrap()).collect();
        let special: Vec<u32> = (0..400).filter(|&token| tokenizer.is_special(token)).collect();
        let found = json!([plain, whole, special, tokenizer.vocab_size()]);
        let whole = case.get("whole").unwrap_or(&case["plain"]);
        let expected = json!([case["plain"], whole, case["special"], case["count"]]);
        if found != expected {
            wrong.push(format!("{}\n  found {found}\n  expected {expected}", case["name"]));
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn a_declaration_of_another_type_is_an_error() {
    let golden = golden();
    let case = &golden["cases"][0];
    let refused = |file: &str, content: Value| {
        let folder = tempfile::tempdir().unwrap();
        let mut tokenizer = golden["base"].clone();
        for key in ["added_tokens", "normalizer", "post_processor"] {
            tokenizer[key] = case[key].clone();
        }
        fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        fs::write(folder.path().join(file), content.to_string()).unwrap();
        let said = Tokenizer::load(folder.path()).unwrap_err().to_string();
        let (_, said) = said.split_once(&format!("{file}` is ")).unwrap_or_else(|| panic!("{said}"));
        said.to_owned()
    };
    let config = |value| refused("tokenizer_config.json", value);
    let token = "a text, or an object with `content` and flags";
    assert_eq!(config(json!({"eos_token": 5})), format!("`5`, expected {token}"));
    assert_eq!(
        config(json!({"eos_token": {"content": "a", "lstrip": 1}})),
        format!("`{{\"content\":\"a\",\"lstrip\":1}}`, expected {token}")
    );
    assert_eq!(config(json!({"extra_special_tokens": 1})), "`1`, expected a list or an object of tokens");
    assert_eq!(
        config(json!({"added_tokens_decoder": {"x": {"content": "a"}}})),
        "`{\"x\":{\"content\":\"a\"}}`, expected an object of tokens by their ids"
    );
    assert_eq!(config(json!({"split_special_tokens": 1})), "`1`, expected true or false");
    assert_eq!(refused("added_tokens.json", json!({"<a>": "b"})), "`\"b\"`, expected a token id");
}
