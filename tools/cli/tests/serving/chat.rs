//! `/v1/chat/completions`.

use serde_json::{Value, json};

use crate::client::*;
use crate::support::*;

const PATH: &str = "/v1/chat/completions";
const QUESTION: &str = "Tell me a story about a brave owl.";

fn ask(more: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": QUESTION }], "max_tokens": 20 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The text of the shipped model without a server.
fn alone(count: usize) -> String {
    let mut command = tracewright(&["generate", text(&demo()), "--chat", QUESTION, "-n", &count.to_string()]);
    succeed(command.args(SIZES)).out.trim_end_matches('\n').to_owned()
}

/// The contents of a stream, joined.
fn content(events: &[Value]) -> String {
    events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
}

#[test]
fn an_answer_is_that_of_generate() {
    let answer = DEMO.good(PATH, &ask(json!({ "model": "demo" })));
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], alone(20));
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(answer["model"], "demo");
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["usage"]["prompt_tokens"], 19);
    assert_eq!(answer["usage"]["completion_tokens"], 20);
    assert_eq!(answer["usage"]["total_tokens"], 39);
    let whole = DEMO.good(PATH, &ask(json!({ "max_tokens": null })));
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    let cut = DEMO.good(PATH, &ask(json!({ "max_tokens": null, "stop": ["busy"] })));
    assert_eq!(cut["choices"][0]["message"]["content"], text.split_once("busy").unwrap().0);
    assert_eq!(cut["choices"][0]["finish_reason"], "stop");
}

#[test]
fn a_stream_has_the_same_text_and_usage() {
    let whole = DEMO.good(PATH, &ask(json!({ "cache_prompt": false })));
    let more = json!({ "cache_prompt": false, "stream": true, "stream_options": { "include_usage": true } });
    let response = DEMO.post(PATH, &ask(more));
    assert!(response.head.to_lowercase().contains("content-type: text/event-stream"), "{}", response.head);
    let events = response.events();
    assert_eq!(content(&events), whole["choices"][0]["message"]["content"]);
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let (usage, chunks) = events.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"], whole["usage"]);
    assert!(
        chunks.iter().all(|chunk| chunk["usage"].is_null() && chunk["object"] == "chat.completion.chunk")
    );
    let finishes: Vec<_> = chunks.iter().map(|chunk| &chunk["choices"][0]["finish_reason"]).collect();
    let (last, others) = finishes.split_last().unwrap();
    assert_eq!(**last, "length");
    assert!(others.iter().all(|finish| finish.is_null()));
    assert!(chunks.len() > 10, "{chunks:?}");
}

/// More requests than slots: each gets the answer that it would get alone.
#[test]
fn requests_share_the_slots() {
    let questions = ["fox", "owl", "frog", "cat", "dog", "girl", "boy", "bear"];
    let body = |animal: &str| {
        let content = format!("Tell me a story about a brave {animal}.");
        let messages = json!([{ "role": "user", "content": content }]);
        json!({ "messages": messages, "max_tokens": 40, "cache_prompt": false })
    };
    let text = |answer: Value| answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let one_by_one: Vec<String> =
        questions.iter().map(|animal| text(DEMO.good(PATH, &body(animal)))).collect();
    let together: Vec<String> = std::thread::scope(|scope| {
        let threads = questions.map(|animal| scope.spawn(move || text(DEMO.good(PATH, &body(animal)))));
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(together, one_by_one);
}

#[test]
fn a_prompt_that_does_not_fit_is_an_error_with_both_numbers() {
    let messages = json!([{ "role": "user", "content": "owl ".repeat(600) }]);
    let error = DEMO.bad(PATH, &json!({ "messages": messages }), 400);
    assert_eq!(error["code"], "context_length_exceeded");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("the prompt has 6") && message.contains("has only 512 tokens"), "{message}");
    // A limit beyond the context is none: the answer ends where the context does.
    let answer = DEMO.good(PATH, &ask(json!({ "max_tokens": 1_000_000, "stop": ["soup"] })));
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

#[test]
fn errors_name_the_field() {
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    for (body, param, words) in [
        (json!({}), json!("messages"), "is missing"),
        (json!({ "messages": [] }), json!("messages"), "at least one message"),
        (json!({ "messages": [{ "role": "usr" }] }), json!("messages[0].role"), "`system`"),
        (json!({ "messages": [{ "role": "user", "content": 5 }] }), json!("messages[0].content"), "is `5`"),
        (json!({ "messages": messages, "temperature": "hot" }), json!("temperature"), "expected a number"),
        (json!({ "messages": messages, "temperature": -1 }), json!("temperature"), "a number from 0"),
        (json!({ "messages": messages, "top_p": 2 }), json!("top_p"), "a number from 0 to 1"),
        (json!({ "messages": messages, "max_tokens": 0 }), json!("max_tokens"), "at least 1"),
        (json!({ "messages": messages, "n": 99 }), json!("n"), "from 1 to 16"),
        (json!({ "messages": messages, "stop": 5 }), json!("stop"), "a text or a list"),
        (json!({ "messages": messages, "top_logprobs": 50 }), json!("top_logprobs"), "from 0 to 20"),
        (json!({ "messages": messages, "stream_options": [] }), json!("stream_options"), "expected"),
    ] {
        let error = DEMO.bad(PATH, &body, 400);
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
    let error = DEMO.bad(PATH, &ask(json!({ "model": "gpt-4" })), 404);
    assert_eq!(error["code"], "model_not_found");
    assert_eq!(error["message"], "the server has no model `gpt-4`, expected `demo`");
}

#[test]
fn health_and_models() {
    assert_eq!(DEMO.get("/health").json(), json!({ "status": "ok" }));
    let models = DEMO.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "demo");
    assert_eq!(models["data"][0]["meta"]["slots"], 4);
    assert_eq!(DEMO.get("/v1/models/demo").json()["id"], "demo");
    assert_eq!(DEMO.get("/v1/models/other").error()["code"], "model_not_found");
    assert_eq!(DEMO.get("/nothing").status, 404);
    assert_eq!(DEMO.get(PATH).status, 405);
}
