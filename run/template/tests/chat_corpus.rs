//! Renders each chat template of a corpus with each conversation, and compares the result with
//! transformers' `apply_chat_template`.
//!
//! `tests/oracle/chat.py` writes the corpus, and `tests/oracle/README.md` explains the keys of the
//! corpus.

use std::fs;
use std::io;
use std::path::Path;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use serde_json::{Map, Value};
use tracewright_template::{Chat, ChatTemplate, TemplateError};

fn corpus() -> io::Result<(Value, Zoned)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/chat.json");
    let corpus: Value = serde_json::from_str(&fs::read_to_string(path)?)?;
    let now: Timestamp = corpus["now"].as_str().unwrap_or_default().parse().map_err(io::Error::other)?;
    Ok((corpus, now.to_zoned(TimeZone::UTC)))
}

/// Compares the results and errors of expressions with Jinja. The expressions call Python's
/// methods, Jinja's filters and Jinja's tests.
#[test]
fn the_expressions_have_no_difference() {
    let (corpus, now) = corpus().unwrap();
    let messages = corpus["conversations"]["system"]["messages"].as_array().unwrap();
    let mut differences = Vec::new();
    let expressions = corpus["expressions"].as_array().unwrap();
    for expression in expressions {
        let source = expression[0].as_str().unwrap();
        let chat = Chat { messages: messages.clone(), now: Some(now.clone()), ..Chat::default() };
        let rendered =
            ChatTemplate::from_source(source, Map::new()).and_then(|template| template.render(&chat));
        if rendered.as_deref().ok() != expression[1].as_str() {
            differences.push(format!("{source}\n  Jinja: {}\n  ours: {rendered:?}", expression[1]));
        }
    }
    let (count, total) = (differences.len(), expressions.len());
    assert!(count == 0 && total > 0, "{count} of {total} expressions differ:\n{}", differences.join("\n"));
}

#[test]
fn the_corpus_has_no_difference() {
    let (corpus, now) = corpus().unwrap();
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
            (Err(TemplateError::Raised { message }), None, Some(Value::String(expected))) => {
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
