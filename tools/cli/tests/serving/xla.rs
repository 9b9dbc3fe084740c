//! A server whose model XLA runs: parallel requests get the texts of transformers.

use std::thread;

use serde_json::{Value, json};

use crate::client::*;
use crate::support::*;

#[test]
fn parallel_requests_get_the_texts_of_transformers() {
    let Some(plugin) = cpu_plugin() else { return };
    let demo = demo();
    let arguments = [text(&demo), "--slots", "4", "--engine", "xla", "--plugin", text(&plugin)];
    let serving = Serving::of(&arguments);
    let golden = std::fs::read(root().join("tests/fixtures/demo.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let is_text = |prompt: &&Value| prompt["prompt"].as_str().is_some_and(|text| !text.is_empty());
    let prompts: Vec<&Value> = golden["prompts"].as_array().unwrap().iter().filter(is_text).take(8).collect();
    assert_eq!(prompts.len(), 8);
    thread::scope(|scope| {
        for prompt in &prompts {
            scope.spawn(|| {
                let body = json!({
                    "prompt": prompt["prompt"], "max_tokens": 48, "temperature": 0, "ignore_eos": true,
                });
                let answer = serving.good("/v1/completions", &body);
                assert_eq!(answer["choices"][0]["text"], prompt["text"], "{}", prompt["prompt"]);
            });
        }
    });
}
