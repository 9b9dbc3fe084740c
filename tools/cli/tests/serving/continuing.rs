//! Answers that continue the last message.

use serde_json::{Value, json};

use crate::client::*;
use crate::support::*;

const PATH: &str = "/v1/chat/completions";
const QUESTION: &str = "Tell me a story about a brave owl.";

/// The prompt of these messages.
fn prompt(serving: &Serving, messages: &Value, more: &Value) -> String {
    let mut body = json!({ "messages": messages });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serving.good("/apply-template", &body)["prompt"].as_str().unwrap().to_owned()
}

#[test]
fn an_answer_continues_the_last_message() {
    let question = json!({ "role": "user", "content": QUESTION });
    let asked = prompt(&DEMO, &json!([question]), &json!({}));
    let whole = DEMO.good(PATH, &json!({ "messages": [question], "max_tokens": 24, "cache_prompt": false }));
    let story = whole["choices"][0]["message"]["content"].as_str().unwrap();
    let begun: String = story.split_inclusive(' ').take(4).collect();
    let begun = begun.trim_end();
    let messages = json!([question, { "role": "assistant", "content": begun }]);
    // The prompt ends inside the answer.
    assert_eq!(prompt(&DEMO, &messages, &json!({})), format!("{asked}{begun}"));
    assert_eq!(
        prompt(&DEMO, &messages, &json!({ "continue_final_message": true })),
        format!("{asked}{begun}")
    );
    let isolated = Serving::of(&[text(&demo()), "--isolate-templates"]);
    assert_eq!(prompt(&isolated, &messages, &json!({})), format!("{asked}{begun}"));
    let turn = prompt(&DEMO, &messages, &json!({ "continue_final_message": false }));
    assert!(
        turn.len() > asked.len() + begun.len()
            && turn == prompt(&DEMO, &messages, &json!({ "add_generation_prompt": true }))
    );
    for path in [PATH, "/v1/messages"] {
        let mut body = json!({ "messages": messages, "max_tokens": 8, "cache_prompt": false });
        let answer = DEMO.good(path, &body);
        let rest = match path {
            PATH => &answer["choices"][0]["message"]["content"],
            _ => &answer["content"][0]["text"],
        };
        let rest = rest.as_str().unwrap();
        assert!(!rest.is_empty() && story.starts_with(&format!("{begun}{rest}")), "{story}: {rest}");
        body["stream"] = json!(true);
        let response = DEMO.post(path, &body);
        let data = response.body.lines().filter_map(|line| line.strip_prefix("data: "));
        let data = data.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let deltas = data.map(|event| {
            let delta = [&event["choices"][0]["delta"]["content"], &event["delta"]["text"]];
            delta.into_iter().find_map(Value::as_str).unwrap_or_default().to_owned()
        });
        assert_eq!(deltas.collect::<String>(), rest);
        // With tools, too, whose text in front of the answer would begin a new turn.
        body["stream"] = json!(false);
        let function = json!({ "type": "function", "function": { "name": "f" } });
        body["tools"] =
            json!([if path == PATH { function } else { json!({ "name": "f", "input_schema": {} }) }]);
        DEMO.good(path, &body);
    }
    for messages in [json!([question]), json!([question, { "role": "assistant", "content": "" }])] {
        let error = DEMO.bad(PATH, &json!({ "messages": messages, "continue_final_message": true }), 400);
        assert_eq!(error["param"], "continue_final_message", "{error}");
    }
}
