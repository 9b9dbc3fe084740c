//! Requests with images, to a model that sees and to one that does not.

use std::fs;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::client::*;
use crate::support::*;

const QUESTION: &str = "What is this?";

/// The tokens of a question about one image, as transformers counts them (`tests/oracle/gemma3_images.py`).
const TOKENS: usize = 51;

/// A Gemma 3 with random weights.
pub static SEES: LazyLock<Serving> = LazyLock::new(|| {
    let model = format!("sees={}", text(&fixture("gemma3-images")));
    Serving::until_the_end(&[&model])
});

fn bytes(file: &str) -> String {
    STANDARD.encode(fs::read(fixture("images").join(file)).unwrap())
}

fn url(file: &str) -> String {
    format!("data:image/png;base64,{}", bytes(file))
}

/// A question about an image, in OpenAI's first interface.
fn chat(image: &str) -> Value {
    let image = json!({ "type": "image_url", "image_url": { "url": image, "detail": "auto" } });
    let content = json!([image, { "type": "text", "text": QUESTION }]);
    json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": 8, "temperature": 0 })
}

fn text_of(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[test]
fn each_interface_takes_images() {
    let path = "/v1/chat/completions";
    let first = SEES.good(path, &chat(&url("alpha.png")));
    assert_eq!(first["usage"]["prompt_tokens"], TOKENS);
    // A second question about the image computes it no more; another image of the same size is another one.
    let again = SEES.good(path, &chat(&url("alpha.png")));
    assert_eq!(text_of(&again), text_of(&first));
    assert!(cached(&again) > 26, "{again}");
    let other = SEES.good(path, &chat(&url("gray_alpha.png")));
    assert_ne!(text_of(&other), text_of(&first));
    assert!(cached(&other) < 11, "{other}");
    assert_eq!(other["usage"]["prompt_tokens"], TOKENS);

    let image = json!({ "type": "input_image", "image_url": url("alpha.png") });
    let content = json!([image, { "type": "input_text", "text": QUESTION }]);
    let input = json!([{ "role": "user", "content": content }]);
    let body = json!({ "input": input, "max_output_tokens": 8, "temperature": 0 });
    let answer = SEES.good("/v1/responses", &body);
    assert_eq!(answer["output"][0]["content"][0]["text"], text_of(&first));
    assert_eq!(answer["usage"]["input_tokens"], TOKENS);

    let source = json!({ "type": "base64", "media_type": "image/png", "data": bytes("alpha.png") });
    let content = json!([{ "type": "image", "source": source }, { "type": "text", "text": QUESTION }]);
    let body =
        json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": 8, "temperature": 0 });
    let answer = SEES.good("/v1/messages", &body);
    assert_eq!(answer["content"][0]["text"], text_of(&first));
    let counted = SEES.good("/v1/messages/count_tokens", &json!({ "messages": body["messages"] }));
    assert_eq!(counted["input_tokens"], TOKENS);

    let message = json!({ "role": "user", "content": QUESTION, "images": [bytes("alpha.png")] });
    let options = json!({ "num_predict": 8, "temperature": 0 });
    let body = json!({ "model": "sees", "messages": [message], "stream": false, "options": options });
    assert_eq!(SEES.good("/api/chat", &body)["message"]["content"], text_of(&first));
    // A text without images has no list of parts.
    let plain = json!({ "messages": [{ "role": "user", "content": QUESTION }], "max_tokens": 4 });
    assert!(cached(&SEES.good(path, &plain)) < 8);
}

#[test]
fn bad_images_are_errors_of_the_request() {
    let path = "/v1/chat/completions";
    let bad = |image: &str, expected: &str| {
        let error = SEES.bad(path, &chat(image), 400);
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(expected), "{message}");
        assert!(error["param"].as_str().unwrap().starts_with("messages[0].content[0]"), "{error}");
    };
    let network =
        "is a URL of another server, expected a `data:` URL with base64, because the server loads no files";
    bad("https://example.org/cat.png", network);
    bad("HTTP://example.org/cat.png", network);
    bad("file:///etc/passwd", "is a text of another kind");
    bad("data:image/png,abc", "without `;base64,`");
    bad("data:image/png;base64,%%%", "is no base64");
    bad("data:image/png;base64,", "is no image in a known format");
    bad(&url("bomb.png"), "pixels, expected at most");
    bad(&url("files.json"), "is no image in a known format");
    let cut = url("rgb.png");
    bad(&cut[..cut.len() / 8 * 4 - 2], "");
    let many = json!([{ "role": "user", "content": vec![json!({ "type": "image_url", "image_url": { "url": url("rgb.png") } }); 17] }]);
    let error = SEES.bad(path, &json!({ "messages": many }), 400);
    assert_eq!(error["param"], "messages[0].content[16]");
    // The demo reads only text.
    let error = DEMO.bad(path, &chat(&url("rgb.png")), 400);
    assert_eq!(error["param"], "messages[0].content[0]");
    let expected =
        "`messages[0].content[0]` is an image, expected a text, because the model cannot read images";
    assert_eq!(error["message"], expected);
}

#[test]
fn images_outside_messages_are_errors_of_the_request() {
    let source = json!({ "type": "base64", "media_type": "image/png", "data": bytes("alpha.png") });
    let image = json!({ "type": "image", "source": source });
    let texts = json!([{ "type": "text", "text": "a" }, image]);
    let call = json!({ "type": "tool_use", "id": "c", "name": "look", "input": {} });
    let result = json!({ "type": "tool_result", "tool_use_id": "c", "content": texts });
    let messages = json!([
        { "role": "user", "content": QUESTION },
        { "role": "assistant", "content": [call] },
        { "role": "user", "content": [result] },
    ]);
    let response = SEES.post("/v1/messages", &json!({ "messages": messages, "max_tokens": 8 }));
    assert_eq!(response.status, 400, "{}", response.body);
    let error = response.json();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("`messages[2].content[0].content[1]` is an image, expected a text"),
        "{message}"
    );

    let url = json!({ "type": "input_image", "image_url": url("alpha.png") });
    let input = json!([
        { "role": "user", "content": QUESTION },
        { "type": "function_call", "call_id": "c", "name": "look", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "c", "output": [url] },
    ]);
    let error = SEES.bad("/v1/responses", &json!({ "input": input, "max_output_tokens": 8 }), 400);
    assert_eq!(error["param"], "input[2].output[0]");

    // OpenAI's interfaces also take an image in Anthropic's form.
    let content = json!([image, { "type": "text", "text": QUESTION }]);
    let body = json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": 8 });
    assert_eq!(SEES.good("/v1/chat/completions", &body)["usage"]["prompt_tokens"], TOKENS);
    // A URL needs a colon.
    let error = SEES.bad("/v1/chat/completions", &chat("data"), 400);
    assert!(error["message"].as_str().unwrap().contains("without `;base64,`"), "{error}");
}
