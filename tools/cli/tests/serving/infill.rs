//! Text between a prefix and a suffix, for models with fill-in-the-middle tokens.

use std::fs;
use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::client::*;
use crate::support::*;

/// The model in `demo` with the fill-in-the-middle tokens of Qwen2.5-Coder, which replace rare tokens, so that the compiled
/// module stays the same.
static CODER: LazyLock<Serving> = LazyLock::new(|| {
    let folder = copied_demo();
    let path = folder.path().join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    for (name, id) in NAMES {
        let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
        let before = vocabulary.iter().find(|(_, found)| **found == json!(id)).unwrap().0.clone();
        vocabulary.remove(&before);
        vocabulary.insert(name.to_owned(), json!(id));
        let merges = tokenizer["model"]["merges"].as_array_mut().unwrap();
        let merged = |merge: &Value| match merge.as_str() {
            Some(pair) => pair.replacen(' ', "", 1),
            None => merge.as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect(),
        };
        merges.retain(|merge| merged(merge) != before);
        // Qwen's tokenizer does not mark them as special.
        tokenizer["added_tokens"].as_array_mut().unwrap().push(json!({
            "id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": false,
        }));
    }
    fs::write(&path, tokenizer.to_string()).unwrap();
    let serving = Serving::until_the_end(&[&format!("coder={}", text(folder.path()))]);
    drop(folder);
    serving
});

const NAMES: [(&str, u64); 6] = [
    ("<|fim_prefix|>", 1018),
    ("<|fim_suffix|>", 1019),
    ("<|fim_middle|>", 1020),
    ("<|fim_pad|>", 1021),
    ("<|repo_name|>", 1022),
    ("<|file_sep|>", 1023),
];

/// The answer to a prompt of tokens: names of special tokens, and texts.
fn continued(parts: &[&str]) -> Value {
    let mut tokens = Vec::new();
    for part in parts {
        match NAMES.iter().find(|(name, _)| name == part) {
            Some((_, id)) => tokens.push(json!(id)),
            None if *part == "<|begin_of_text|>" => tokens.push(json!(0)),
            None => {
                let body = json!({ "content": part, "add_special": false });
                tokens.extend(CODER.good("/tokenize", &body)["tokens"].as_array().unwrap().clone());
            }
        }
    }
    let body =
        json!({ "prompt": tokens, "max_tokens": 8, "stop_token_ids": [1021, 1022, 1023], "temperature": 0 });
    CODER.good("/v1/completions", &body)
}

#[test]
fn a_completion_with_a_suffix_fills_in_text() {
    let expected = continued(&[
        "<|begin_of_text|>",
        "<|fim_prefix|>",
        "Once upon",
        "<|fim_suffix|>",
        " in a wood.",
        "<|fim_middle|>",
    ]);
    let body = json!({ "prompt": "Once upon", "suffix": " in a wood.", "max_tokens": 8, "temperature": 0 });
    let answer = CODER.good("/v1/completions", &body);
    assert_eq!(answer["choices"][0]["text"], expected["choices"][0]["text"]);
    assert_eq!(answer["usage"]["prompt_tokens"], expected["usage"]["prompt_tokens"]);
    let mut echoed = body.clone();
    echoed["echo"] = json!(true);
    assert_eq!(CODER.bad("/v1/completions", &echoed, 400)["param"], "echo");
    // Without these tokens, the model would ignore the suffix.
    let refused = DEMO.bad("/v1/completions", &body, 400);
    assert_eq!(refused["code"], "unsupported_model");
    assert!(refused["message"].as_str().unwrap().contains("no fill-in-the-middle tokens"), "{refused}");
}

/// The order of the parts is that of llama.cpp's `format_prompt_infill`.
#[test]
fn infill_orders_its_parts_as_llama_cpp_does() {
    let body = json!({
        "input_prefix": "Once upon", "input_suffix": " in a wood.", "prompt": " a time",
        "input_extra": [{ "filename": "owl.txt", "text": "The owl" }, { "text": "The fox" }],
        "n_predict": 8, "temperature": 0, "samplers": ["top_k", "infill", "temperature"], "response_fields": ["content"],
    });
    let expected = continued(&[
        "<|repo_name|>",
        "myproject\n",
        "<|file_sep|>",
        "owl.txt\n",
        "The owl",
        "<|file_sep|>",
        "tmp\n",
        "The fox",
        "<|file_sep|>",
        "filename\n",
        "<|begin_of_text|>",
        "<|fim_prefix|>",
        "Once upon",
        " a time",
        "<|fim_suffix|>",
        " in a wood.",
        "<|fim_middle|>",
    ]);
    let answer = CODER.good("/infill", &body);
    assert_eq!(answer["content"], expected["choices"][0]["text"]);
    assert_eq!(answer["tokens_evaluated"], expected["usage"]["prompt_tokens"]);
    assert_eq!((answer["stop"].clone(), answer["model"].clone()), (json!(true), json!("coder")));
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let events = CODER.post("/infill", &streamed).body;
    let data = events.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|line| serde_json::from_str(line).unwrap()).collect();
    let text: String = events.iter().map(|event| event["content"].as_str().unwrap()).collect();
    assert_eq!(answer["content"], text);
    assert_eq!(events.last().unwrap()["tokens_predicted"], answer["tokens_predicted"]);
    assert_eq!(DEMO.bad("/infill", &body, 400)["code"], "unsupported_model");
    for (name, value) in
        [("n", json!(2)), ("input_extra", json!([{ "filename": "a" }])), ("n_probs", json!(4))]
    {
        let mut bad = body.clone();
        bad[name] = value;
        let error = CODER.bad("/infill", &bad, 400);
        assert!(error["param"].as_str().unwrap().starts_with(name), "{error}");
    }
}

/// The body of llama.vim, with its usual settings.
#[test]
fn infill_takes_the_body_of_llama_vim() {
    let body = json!({
        "id_slot": 0, "input_prefix": "Once upon\n", "input_suffix": "\nin a wood.\n",
        "input_extra": [{ "text": "The owl\n", "time": [1753948, 5], "filename": "owl.txt" }],
        "prompt": "    a time", "n_predict": 128, "stop": [], "n_indent": 4, "top_k": 40, "top_p": 0.90,
        "stream": false, "samplers": ["top_k", "top_p", "infill"], "cache_prompt": true, "t_max_prompt_ms": 500,
        "t_max_predict_ms": 500,
        "response_fields": [
            "content", "timings/prompt_n", "timings/prompt_ms", "timings/predicted_n", "timings/predicted_ms",
            "truncated", "tokens_cached",
        ],
    });
    let answer = CODER.good("/infill", &body);
    assert!(answer["content"].is_string() && answer["truncated"] == json!(false), "{answer}");
    assert!(answer["timings"]["prompt_n"].as_u64().unwrap() > 0, "{answer}");
    // Other endpoints do not ignore a limit of time.
    let other = json!({ "prompt": "a", "t_max_predict_ms": 500 });
    assert_eq!(CODER.bad("/v1/completions", &other, 400)["param"], "t_max_predict_ms");
}
