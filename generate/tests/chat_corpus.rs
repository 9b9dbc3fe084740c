//! Chat templates × conversations, rendered as transformers' `apply_chat_template` did: no difference.
//!
//! The corpus is written by `tests/oracle/chat.py`; its README says what the keys mean.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};
use tracewright_generate::{Chat, ChatTemplate, GenerateError};

#[test]
fn the_corpus_has_no_difference() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/chat.json");
    let corpus: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let now =
        corpus["now"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap().to_zoned(jiff::tz::TimeZone::UTC);
    let cases = corpus["cases"].as_array().unwrap();
    let mut differences = Vec::new();
    for case in cases {
        let conversation = &corpus["conversations"][case["conversation"].as_str().unwrap()];
        let chat = Chat {
            messages: conversation["messages"].as_array().unwrap().clone(),
            tools: conversation.get("tools").and_then(Value::as_array).cloned(),
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            variables: conversation
                .get("variables")
                .map_or_else(Map::new, |v| v.as_object().unwrap().clone()),
            now: Some(now.clone()),
        };
        let source = corpus["templates"][case["template"].as_str().unwrap()].as_str().unwrap();
        let special_tokens = corpus["special_tokens"].as_object().unwrap().clone();
        let rendered =
            ChatTemplate::from_source(source, special_tokens).and_then(|template| template.render(&chat));
        let same = match (&rendered, case.get("text"), case.get("error")) {
            (Ok(text), Some(expected), None) => *expected == text.as_str(),
            (Err(GenerateError::TemplateRaised { message }), None, Some(Value::String(expected))) => {
                message == expected
            }
            (Err(_), None, Some(Value::Null)) => true,
            _ => false,
        };
        if !same {
            differences.push(format!("{case:#}\n  ours: {rendered:#?}"));
        }
    }
    let (count, total) = (differences.len(), cases.len());
    assert!(count == 0 && total > 0, "{count} of {total} cases differ:\n{}", differences.join("\n"));
}
