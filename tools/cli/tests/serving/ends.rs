//! How a server and its connections end.

use std::io::{Read as _, Write as _};

use serde_json::json;

use crate::client::*;
use crate::support::*;

const PATH: &str = "/v1/chat/completions";

/// A request whose answer fills the context.
fn long(count: usize) -> serde_json::Value {
    let messages = json!([{ "role": "user", "content": "Tell me a story about a brave owl." }]);
    json!({ "messages": messages, "max_tokens": count, "ignore_eos": true, "stream": true })
}

#[test]
fn a_signal_drains() {
    for signal in ["-TERM", "-INT"] {
        let serving = Serving::of(&[text(&demo())]);
        let mut stream = serving.connect();
        let body = long(400).to_string();
        let length = body.len();
        write!(
            stream,
            "POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut first = [0; 300];
        stream.read_exact(&mut first).unwrap();
        serving.signal(signal);
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("data: [DONE]"), "{rest}");
        assert_eq!(serving.end(), Some(0));
    }
}

#[test]
fn a_port_in_use_is_an_error() {
    let port = DEMO.port.to_string();
    let mut command = tracewright(&["serve", text(&demo()), "--port", &port]);
    let words = ["TW1201", "the server cannot listen on `127.0.0.1:", "in use"];
    refused(&mut command, 1, &words);
}

/// A client that leaves frees its slot: with one slot, the next request does not wait for the whole answer.
#[test]
fn a_client_that_leaves_frees_its_slot() {
    let serving = Serving::of(&[text(&demo()), "--slots", "1"]);
    for stream in [true, false] {
        for _ in 0..8 {
            let mut body = long(480);
            body["stream"] = json!(stream);
            let body = body.to_string();
            let mut connection = serving.connect();
            let length = body.len();
            write!(
                connection,
                "POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
            )
            .unwrap();
            if stream {
                connection.read_exact(&mut [0; 200]).unwrap();
            }
        }
    }
    wait_until("all answers to end", || {
        serving.get("/metrics").body.contains("tracewright_answers_open{model=\"demo\"} 0")
    });
    let text = serving.get("/metrics").body;
    let tokens = text
        .lines()
        .find_map(|line| line.strip_prefix("tracewright_generated_tokens_total{model=\"demo\"} "));
    // Most of 16 answers of 480 tokens were not generated.
    assert!(tokens.unwrap().parse::<u32>().unwrap() < 2000, "{text}");
    assert_eq!(
        serving.good(PATH, &json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 2 }))["object"],
        "chat.completion"
    );
    serving.signal("-TERM");
    assert_eq!(serving.end(), Some(0));
}

/// The value of a line of the metrics, or 0.
fn metric(serving: &Serving, name: &str) -> u64 {
    let text = serving.get("/metrics").body;
    let value =
        text.lines().find_map(|line| line.strip_prefix(&format!("tracewright_{name}{{model=\"demo\"}} ")));
    value.map_or(0, |value| value.parse().unwrap())
}

/// A client that leaves before its first token frees its slot, also if it first closes only its half.
#[test]
fn a_client_that_leaves_during_its_prompt_frees_its_slot() {
    let serving = Serving::of(&[text(&demo()), "--slots", "1"]);
    let mut connections = Vec::new();
    for i in 0..16 {
        let words = format!("{i} ") + &"owl and fox and bear ".repeat(20);
        let mut body = json!({ "prompt": words, "max_tokens": 8, "ignore_eos": true, "cache_prompt": false });
        body["stream"] = json!(i % 2 == 0);
        let (body, mut connection) = (body.to_string(), serving.connect());
        write!(
            connection,
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        if i % 4 < 2 {
            connection.shutdown(std::net::Shutdown::Write).unwrap();
        }
        connections.push(connection);
    }
    wait_until("the prompts to begin", || metric(&serving, "answers_open") > 8);
    drop(connections);
    let start = std::time::Instant::now();
    wait_until("the slot to be free", || metric(&serving, "answers_open") == 0);
    let (elapsed, firsts) = (start.elapsed(), metric(&serving, "time_to_first_token_seconds_count"));
    println!("free after {elapsed:?}, {firsts} first tokens");
    // Almost no prompt was computed to its end.
    assert!(firsts < 8, "{firsts} first tokens");
}

/// A client that has sent its request, and closes its half of the connection, gets the whole answer.
#[test]
fn a_half_closed_connection_gets_its_answer() {
    for stream in [true, false] {
        let mut body = long(100);
        body["stream"] = json!(stream);
        let body = body.to_string();
        let mut connection = DEMO.connect();
        let length = body.len();
        write!(
            connection,
            "POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        connection.shutdown(std::net::Shutdown::Write).unwrap();
        let start = std::time::Instant::now();
        let answer = read(connection);
        assert_eq!(answer.status, 200, "{}", answer.body);
        if stream {
            assert!(
                answer.body.contains("\"length\"") && answer.body.trim_end().ends_with("[DONE]"),
                "{}",
                answer.body
            );
        } else {
            assert_eq!(answer.json()["usage"]["completion_tokens"], 100);
        }
        // The server then closes its half, and does not wait for another request.
        assert!(start.elapsed() < std::time::Duration::from_secs(25), "{:?}", start.elapsed());
    }
}

/// The disk is full when a request needs a second model: the request gets the reason, and the first model still answers.
#[cfg(unix)]
#[test]
fn a_full_disk_stops_one_request_only() {
    let (cache, other) = (folder(), copied_demo());
    edit_config(other.path(), |config| {
        config.insert("rms_norm_eps".into(), json!(1e-4));
    });
    let second = format!("other={}", text(other.path()));
    let serve = |models: &[&str]| {
        let mut command = tracewright(&["serve", "--port", "0"]);
        command.args(models).args(SIZES).env("TRACEWRIGHT_CACHE", cache.path());
        command
    };
    let demo = demo();
    // The cache has all files of the first model.
    drop(Serving::start(serve(&[text(&demo)])));
    let files = listing(cache.path());
    let serving = Serving::start(limited(&serve(&[text(&demo), &second]), 100));
    let ask = |model: &str| json!({ "model": model, "prompt": "Once", "max_tokens": 2 });
    for _ in 0..2 {
        let error = serving.bad("/v1/completions", &ask("other"), 500);
        assert_eq!(error["code"], "model_not_loaded");
        let log = || serving.err.lock().unwrap().clone();
        wait_until("the reason to be in the log", || log().contains(text(cache.path())));
        serving.good("/v1/completions", &ask("demo"));
    }
    assert_eq!(listing(cache.path()), files);
    serving.signal("-TERM");
    assert_eq!(serving.end(), Some(0));
}
