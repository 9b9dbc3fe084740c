//! Compares the demo's tokenizer, chat template and stop tokens with transformers (`tests/oracle/README.md`
//! explains the keys).

#![allow(clippy::unwrap_used, reason = "the helpers are called by tests only")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tracewright_generate::{Chat, Tokenizer, chat_template, stop_tokens};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn tokenizer() -> Tokenizer {
    Tokenizer::load(root().join("demo")).unwrap().unwrap()
}

fn goldens() -> Vec<Value> {
    let text = fs::read_to_string(root().join("tests/fixtures/demo.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    golden["prompts"].as_array().unwrap().clone()
}

fn tokens(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect()
}

#[test]
fn prompts_encode_as_transformers_encodes_them() {
    let tokenizer = tokenizer();
    for golden in goldens() {
        let ours = match golden["messages"].as_array() {
            Some(messages) => {
                let template = chat_template(root().join("demo")).unwrap();
                let chat =
                    Chat { messages: messages.clone(), add_generation_prompt: true, ..Chat::default() };
                tokenizer.encode_plain(&template.render(&chat).unwrap()).unwrap()
            }
            None => tokenizer.encode(golden["prompt"].as_str().unwrap()).unwrap(),
        };
        assert_eq!(ours, tokens(&golden["prompt_tokens"]), "{}", golden["prompt"]);
    }
}

#[test]
fn continuations_decode_as_transformers_decodes_them_whole_and_in_pieces() {
    let tokenizer = tokenizer();
    for golden in goldens() {
        let (tokens, text) = (tokens(&golden["tokens"]), golden["text"].as_str().unwrap());
        assert_eq!(tokenizer.decode(&tokens).unwrap(), text);
        let mut stream = tokenizer.stream();
        let pieces: Vec<_> = tokens.iter().map(|&token| stream.push(token).unwrap()).collect();
        assert_eq!(pieces.concat() + &stream.finish().unwrap(), text);
    }
}

#[test]
fn the_demo_says_where_its_texts_end() {
    let stop = stop_tokens(root().join("demo")).unwrap();
    assert!(!stop.is_empty());
    let vocab_size = tokenizer().vocab_size();
    assert!(stop.iter().all(|&token| (token as usize) < vocab_size), "{stop:?}");
}
