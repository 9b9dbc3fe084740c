//! Requests that are no good: each gets a status of 4xx in OpenAI's form, and none stops the others.

use std::io::Write as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::*;
use crate::support::*;

const PATHS: [&str; 8] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/tokenize",
    "/detokenize",
    "/apply-template",
];

/// Values of every kind, for any field.
fn odd_values() -> Vec<Value> {
    let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
    vec![
        json!(null),
        json!(true),
        json!(-1),
        json!(1e300),
        json!(u64::MAX),
        json!(""),
        json!("\u{0}\u{1b}[2J\u{10FFFF}"),
        json!([]),
        json!({}),
        json!([null, 1, "a", {}]),
        json!({ "role": "user", "type": 7, "name": [], "content": { "a": [1] } }),
        json!([{ "role": "user", "content": [{ "type": "text" }] }]),
        json!([{ "role": "assistant", "tool_calls": [{ "function": 5 }] }]),
        json!([{ "type": "function", "function": { "name": "f", "parameters": { "$ref": "#" } } }]),
        deep,
    ]
}

const FIELDS: [&str; 28] = [
    "model",
    "messages",
    "prompt",
    "input",
    "content",
    "tokens",
    "stream",
    "stream_options",
    "max_tokens",
    "n",
    "stop",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "logprobs",
    "top_logprobs",
    "tools",
    "tool_choice",
    "response_format",
    "system",
    "stop_sequences",
    "reasoning",
    "text",
    "instructions",
    "chat_template_kwargs",
    "logit_bias",
    "frequency_penalty",
];

/// A body that would be answered.
fn good() -> Value {
    json!({
        "messages": [{ "role": "user", "content": "Hi" }], "prompt": "Hi", "input": "Hi", "content": "Hi", "tokens": [1],
        "max_tokens": 1, "max_output_tokens": 1,
    })
}

/// The fields of [`good`] that a path has.
fn good_for(path: &str) -> Value {
    let names: &[&str] = match path {
        "/v1/completions" => &["prompt", "max_tokens"],
        "/v1/responses" => &["input", "max_output_tokens"],
        "/v1/chat/completions" | "/v1/messages" | "/apply-template" => &["messages", "max_tokens"],
        _ => &["input", "content", "tokens"],
    };
    good()
        .as_object()
        .unwrap()
        .clone()
        .into_iter()
        .filter(|(name, _)| names.contains(&name.as_str()))
        .collect()
}

#[track_caller]
fn check(response: &Response, what: &str) {
    assert!(
        response.status == 200 || (400..500).contains(&response.status),
        "{what}: {} {}",
        response.status,
        response.body
    );
    if response.status != 200 {
        let error = &response.json()["error"];
        assert!(error["message"].is_string() && error["type"].is_string(), "{what}: {}", response.body);
    }
}

/// Each field of each path with each value: thousands of bodies. The short form takes a third of them, with each value for each
/// path, for each field, and at the latest in the third path for each pair of them.
#[test]
fn no_value_of_a_field_is_an_error_of_the_server() {
    let mut count = 0;
    let serving = Serving::of(&[text(&demo())]);
    for (row, path) in PATHS.into_iter().enumerate() {
        for (column, field) in FIELDS.into_iter().enumerate() {
            let is_wanted = |number: usize| is_long() || (row + column + number).is_multiple_of(3);
            for (_, value) in odd_values().into_iter().enumerate().filter(|(number, _)| is_wanted(*number)) {
                let mut body = good_for(path);
                body[field] = value;
                check(&serving.post(path, &body), &format!("{path} {body}"));
                count += 1;
            }
        }
    }
    assert!(count > if is_long() { 3000 } else { 1000 }, "{count}");
    // The server still answers as before.
    let answer = serving.good("/v1/completions", &json!({ "prompt": "Once", "max_tokens": 1 }));
    assert_eq!(answer["usage"]["completion_tokens"], 1);
    assert!(!serving.err.lock().unwrap().contains("panicked"));
}

/// Bodies that are no JSON, or a damaged one.
#[test]
fn bodies_that_are_no_objects() {
    let whole = good().to_string();
    let mut bodies: Vec<Vec<u8>> = [
        "",
        "null",
        "[]",
        "5",
        "\"a\"",
        "{",
        "}",
        "{\"a\":}",
        "nul",
        "{\"messages\":[{]}",
        "{\"temperature\":NaN}",
        "{\"n\":1e999}",
        "\u{feff}{}",
    ]
    .map(|body| body.as_bytes().to_vec())
    .into();
    bodies.extend([
        b"\xff\xfe".to_vec(),
        b"{\"a\":\"\xff\"}".to_vec(),
        "[".repeat(100_000).into_bytes(),
        "{\"a\":".repeat(50_000).into_bytes(),
    ]);
    bodies.extend((1..whole.len()).map(|end| whole.as_bytes()[..end].to_vec()));
    let mut random = 1_u64;
    for _ in 0..if is_long() { 7000 } else { 300 } {
        let mut body = whole.clone().into_bytes();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = (random >> 33) as usize % body.len();
        body[at] = (random >> 20) as u8;
        bodies.push(body);
    }
    for (i, body) in bodies.iter().enumerate() {
        let path = PATHS[i % PATHS.len()];
        let response = DEMO.ask(&format!("POST {path} HTTP/1.1\r\nContent-Type: application/json"), body);
        check(&response, &format!("{path} {}", String::from_utf8_lossy(&body[..body.len().min(200)])));
    }
    assert!(bodies.len() > 400);
    // A compressed body, one that is cut, and one that is larger than it looks.
    let head = "POST /tokenize HTTP/1.1\r\nContent-Type: application/json\r\nContent-Encoding: gzip";
    let zip = |body: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut encoder, body).unwrap();
        encoder.finish().unwrap()
    };
    let body = br#"{"content": "Once"}"#;
    let plain = DEMO.ask("POST /tokenize HTTP/1.1\r\nContent-Type: application/json", body);
    assert_eq!(DEMO.ask(head, &zip(body)).json(), plain.json());
    assert_eq!(DEMO.ask(head, &zip(body)[..20]).error()["code"], "invalid_body");
    assert_eq!(DEMO.ask(head, body).error()["code"], "invalid_body");
    assert_eq!(DEMO.ask(head, &zip(&vec![b' '; 17 << 20])).error()["code"], "body_too_large");
    let kind = DEMO.ask("POST /tokenize HTTP/1.1\r\nContent-Type: text/xml", b"<a/>");
    assert_eq!((kind.status, kind.error()["code"].clone()), (415, json!("unsupported_media_type")));
}

/// Bytes that are no HTTP.
#[test]
fn heads_that_are_none() {
    let long = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "a".repeat(2 << 20));
    let many = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X: a\r\n".repeat(2000));
    for head in [
        "\r\n\r\n",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "\u{0}\u{1}\u{2}\r\n\r\n",
        "GET / HTTP/1.1\r\nA B: c\r\n\r\n",
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        &long,
        &many,
    ] {
        let mut stream = DEMO.connect();
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut bytes = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stream, &mut bytes);
        // A closed connection is an answer, too.
        let answer = String::from_utf8_lossy(&bytes);
        assert!(
            bytes.is_empty() || answer.starts_with("HTTP/1.1 4") || answer.starts_with("HTTP/1.0 4"),
            "{head:.80}: {answer}"
        );
    }
}

#[test]
fn a_body_has_a_largest_size() {
    let serving = Serving::of(&[text(&demo()), "--max-body", "1"]);
    let body = json!({ "content": "a".repeat(2 << 20) });
    let response = serving.post("/tokenize", &body);
    assert_eq!((response.status, response.error()["code"].clone()), (413, json!("body_too_large")));
}

/// Clients that send slowly, or read nothing, hold up nobody.
#[test]
fn slow_clients_hold_up_nobody() {
    let serving = Serving::of(&[text(&demo()), "--slots", "1"]);
    let mut slow = Vec::new();
    for i in 0..64 {
        let mut stream = serving.connect();
        let head = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
        stream.write_all(&head.as_bytes()[..if i % 2 == 0 { 20 } else { head.len() }]).unwrap();
        slow.push(stream);
    }
    // This one asks for a stream, and never reads it.
    let body =
        json!({ "messages": [{ "role": "user", "content": "Hi" }], "stream": true, "ignore_eos": true })
            .to_string();
    let mut deaf = serving.connect();
    write!(deaf, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let start = Instant::now();
    serving.good("/v1/completions", &json!({ "prompt": "Once", "max_tokens": 1 }));
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    drop((slow, deaf));
}
