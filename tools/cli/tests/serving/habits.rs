//! Habits of clients: how they ask, which errors and headers they expect, and what an operator finds in the log.

use std::io::{Read as _, Write as _};

use serde_json::{Value, json};

use crate::client::*;
use crate::support::*;

const PATH: &str = "/v1/chat/completions";

fn ask(more: Value) -> Value {
    let mut body =
        json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 4, "cache_prompt": false });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn function(more: Value) -> Value {
    let parameters =
        json!({ "type": "object", "properties": { "city": { "enum": ["Paris"] } }, "required": ["city"] });
    let mut function = json!({ "name": "get_weather", "parameters": parameters });
    function.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    function
}

/// The deltas of a stream, joined: the content, the arguments of calls, and the reason of the end.
fn streamed(body: &Value) -> (String, String, Value) {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let (mut content, mut arguments, mut finish) = (String::new(), String::new(), Value::Null);
    for event in DEMO.post(PATH, &body).events() {
        let choice = &event["choices"][0];
        let delta = &choice["delta"];
        content += delta["content"].as_str().unwrap_or_default();
        for call in [&delta["tool_calls"][0]["function"], &delta["function_call"]] {
            arguments += call["arguments"].as_str().unwrap_or_default();
        }
        if !choice["finish_reason"].is_null() {
            finish = choice["finish_reason"].clone();
        }
    }
    (content, arguments, finish)
}

#[test]
fn a_choice_of_allowed_tools_is_kept() {
    let tool = |name: &str| json!({ "type": "function", "function": function(json!({ "name": name })) });
    let tools = json!([tool("get_weather"), tool("get_time")]);
    let allowed = |mode: &str, name: &str| {
        let tools = json!([{ "type": "function", "function": { "name": name } }]);
        json!({ "type": "allowed_tools", "allowed_tools": { "mode": mode, "tools": tools } })
    };
    let body =
        ask(json!({ "tools": tools, "tool_choice": allowed("required", "get_time"), "max_tokens": 60 }));
    let answer = DEMO.good(PATH, &body);
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "get_time");
    assert_eq!(streamed(&body), (String::new(), "{\"city\":\"Paris\"}".into(), json!("tool_calls")));
    let answer = DEMO.good(
        "/v1/responses",
        &json!({
            "input": "Hi", "max_output_tokens": 60,
            "tools": [{ "type": "function", "name": "f" }, { "type": "function", "name": "g" }],
            "tool_choice": { "type": "allowed_tools", "mode": "required", "tools": [{ "type": "function", "name": "g" }] },
        }),
    );
    assert_eq!(answer["output"][0]["name"], "g", "{answer}");
    for (choice, param) in [
        (allowed("required", "other"), "tool_choice"),
        (allowed("sometimes", "get_time"), "tool_choice.allowed_tools.mode"),
        (json!({ "type": "allowed_tools", "allowed_tools": {} }), "tool_choice.allowed_tools.tools"),
    ] {
        assert_eq!(
            DEMO.bad(PATH, &ask(json!({ "tools": tools, "tool_choice": choice })), 400)["param"],
            param
        );
    }
}

#[test]
fn functions_of_the_first_interface_are_called() {
    let body = ask(json!({
        "functions": [function(json!({}))], "function_call": { "name": "get_weather" }, "max_tokens": 60,
        "messages": [
            { "role": "user", "content": "Hi" },
            { "role": "assistant", "content": null, "function_call": { "name": "get_weather", "arguments": "{}" } },
            { "role": "function", "name": "get_weather", "content": "warm" },
        ],
    }));
    let choice = DEMO.good(PATH, &body)["choices"][0].clone();
    let expected = json!({ "name": "get_weather", "arguments": "{\"city\":\"Paris\"}" });
    assert_eq!(
        (&choice["message"]["function_call"], &choice["finish_reason"]),
        (&expected, &json!("function_call"))
    );
    assert_eq!(streamed(&body), (String::new(), "{\"city\":\"Paris\"}".into(), json!("function_call")));
    for (more, param) in [
        (json!({ "functions": [], "tools": [] }), "functions"),
        (json!({ "functions": [function(json!({}))], "function_call": { "name": "x" } }), "function_call"),
        (json!({ "functions": [{}] }), "functions[0].name"),
    ] {
        assert_eq!(DEMO.bad(PATH, &ask(more), 400)["param"], param);
    }
}

/// A call that the limit cuts has a part of its arguments, and nothing of its form is content.
#[test]
fn a_cut_call_is_no_content() {
    let tools = json!([{ "type": "function", "function": function(json!({})) }]);
    let mut parts = Vec::new();
    for most in 1..24 {
        let body = ask(json!({ "tools": tools, "tool_choice": "required", "max_tokens": most }));
        let choice = DEMO.good(PATH, &body)["choices"][0].clone();
        let arguments =
            choice["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap_or_default();
        assert_eq!(choice["message"]["content"].as_str().unwrap_or_default(), "", "{choice}");
        assert!("{\"city\":\"Paris\"}".starts_with(arguments), "{choice}");
        let finish = if choice["finish_reason"] == "tool_calls" { "tool_calls" } else { "length" };
        assert_eq!(streamed(&body), (String::new(), arguments.into(), json!(finish)));
        assert_eq!(finish == "tool_calls", arguments.ends_with('}'), "{choice}");
        parts.push(arguments.to_owned());
    }
    assert!(parts.iter().any(|part| !part.is_empty() && !part.ends_with('}')), "{parts:?}");
}

#[test]
fn an_answer_is_cut_between_characters() {
    let text = "👍 é 日本 🇫🇷";
    let format = json!({ "type": "json_schema", "json_schema": { "schema": { "const": text } } });
    for most in 1..16 {
        let body = ask(json!({ "response_format": format, "max_tokens": most }));
        let content = DEMO.good(PATH, &body)["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        assert!(json!(text).to_string().starts_with(&content), "{content}");
        assert_eq!(streamed(&body).0, content);
    }
}

#[test]
fn objects_are_closed_unless_they_are_opened() {
    let open = json!({ "type": "object", "properties": { "a": { "enum": [1] } }, "required": ["a"] });
    let format = |strict: bool| {
        let schema = json!({ "name": "x", "strict": strict, "schema": open });
        ask(json!({ "response_format": { "type": "json_schema", "json_schema": schema }, "max_tokens": 40 }))
    };
    let content = |serving: &Serving, body: &Value| {
        serving.good(PATH, body)["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    assert_eq!(content(&DEMO, &format(false)), "{\"a\":1}");
    let serving = Serving::of(&[text(&demo()), "--open-objects"]);
    assert_eq!(content(&serving, &format(true)), "{\"a\":1}");
    let bias = |schema: Value| {
        // A comma after the first key, which only an open object allows.
        let comma = DEMO.good("/tokenize", &json!({ "content": "," }))["tokens"][0].clone();
        let format = json!({ "type": "json_schema", "json_schema": { "schema": schema } });
        ask(json!({ "response_format": format, "logit_bias": { comma.to_string(): 50 }, "max_tokens": 40 }))
    };
    assert_ne!(content(&serving, &bias(open.clone())), "{\"a\":1}");
    assert_eq!(content(&DEMO, &bias(open)), "{\"a\":1}");
}

#[test]
fn numbers_and_documents_of_clients() {
    // No limit: the answer ends at a stop token, or where the context ends.
    let answer = DEMO.good(PATH, &ask(json!({ "max_tokens": -1, "stop": ["."] })));
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(DEMO.bad(PATH, &ask(json!({ "max_tokens": -2 })), 400)["param"], "max_tokens");
    let source = json!({ "type": "text", "media_type": "text/plain", "data": "Owls hunt at night." });
    let blocks =
        |block: Value| json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": [block] }] });
    let document = json!({ "type": "document", "source": source, "title": "Owls" });
    let written = json!({ "type": "text", "text": "Owls\n\nOwls hunt at night." });
    let count = |block| DEMO.good("/v1/messages/count_tokens", &blocks(block))["input_tokens"].clone();
    assert_eq!(count(document), count(written));
    let pdf = json!({ "type": "document", "source": { "type": "base64", "media_type": "application/pdf", "data": "" } });
    let refused = DEMO.post("/v1/messages", &blocks(pdf));
    assert!(
        refused.status == 400 && refused.body.contains("messages[0].content[0].source.type"),
        "{}",
        refused.body
    );
}

#[test]
fn errors_have_the_form_and_the_headers_of_the_interface() {
    let head = |path: &str, more: &str| DEMO.ask(&format!("POST {path} HTTP/1.1{more}"), b"{}");
    let json = "\r\nContent-Type: application/json";
    for (path, more, status) in [
        ("/v1/messages", "", 415),
        ("/v1/messages", json, 400),
        ("/v1/messages/nothing", json, 404),
        ("/v1/messages", "\r\nOrigin: http://evil.example", 403),
        ("/v1/models", "\r\nanthropic-version: 2023-06-01", 405),
    ] {
        let response = head(path, more);
        assert_eq!(response.status, status, "{path} {more}: {}", response.body);
        assert_eq!(response.json()["type"], "error", "{}", response.body);
        assert!(response.head.to_lowercase().contains("request-id: req_"), "{}", response.head);
    }
    let kept = head("/tokenize", &format!("{json}\r\nx-request-id: mine-7"));
    assert!(kept.head.to_lowercase().contains("x-request-id: mine-7"), "{}", kept.head);
    let packed = head("/tokenize", &format!("{json}\r\nContent-Encoding: br"));
    assert_eq!((packed.status, packed.error()["code"].clone()), (415, json!("unsupported_encoding")));
    for path in ["/chat/completions", "/v1/v1/chat/completions", "/chat/completions/"] {
        let message = head(path, json).error()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("expected `/v1/chat/completions`"), "{message}");
    }
    assert!(!head("/other", json).body.contains("expected"));
}

#[test]
fn hosts_of_this_machine_and_its_network_are_allowed() {
    let status = |serving: &Serving, host: &str| {
        let mut stream = serving.connect();
        write!(stream, "GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        read(stream).status
    };
    for host in
        ["host.docker.internal:8080", "box.local", "app.localhost:1", "LOCALHOST", "[::1]:80", "localhost."]
    {
        assert_eq!(status(&DEMO, host), 200, "{host}");
    }
    for host in ["evil.example", "internal.evil.example", "evillocal", "localhost.evil.example"] {
        assert_eq!(status(&DEMO, host), 403, "{host}");
    }
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "localhost".into());
    assert_eq!(status(&DEMO, own.trim()), 200);
    let serving = Serving::of(&[text(&demo()), "--allow-host", "models.example"]);
    assert_eq!((status(&serving, "Models.example:443"), status(&serving, "evil.example")), (200, 403));
}

#[test]
fn a_log_has_faults_by_default_and_a_line_per_answer_if_asked() {
    let usual = Serving::of(&[text(&demo()), "other=no/such/folder"]);
    let error = usual.bad("/v1/completions", &json!({ "model": "other", "prompt": "Hi" }), 500);
    // The path is the operator's matter.
    assert!(!error["message"].as_str().unwrap().contains("no/such"), "{error}");
    usual.good(PATH, &ask(json!({})));
    let log = || usual.err.lock().unwrap().clone();
    wait_until("the fault to be in the log", || log().contains("no/such"));
    assert!(log().contains("WARN") && log().contains("req_") && !log().contains("tokens in"), "{}", log());
    let told = Serving::of(&[text(&demo()), "--log", "info"]);
    let head = format!("POST {PATH} HTTP/1.1\r\nContent-Type: application/json\r\nx-request-id: mine-8");
    assert_eq!(told.ask(&head, ask(json!({})).to_string().as_bytes()).status, 200);
    let log = || told.err.lock().unwrap().clone();
    wait_until("the answer to be in the log", || log().contains("mine-8 `demo`: "));
    let line = log().lines().find(|line| line.contains("`demo`: ")).unwrap().to_owned();
    for words in ["tokens in", "4 tokens out", "first token after", "ms: length"] {
        assert!(line.contains(words), "{line}");
    }
}

/// The time for running answers is over: each stream ends with an error, and each other request gets one.
#[test]
fn a_cut_answer_ends_with_an_error() {
    let serving = Serving::of(&[text(&demo()), "--slots", "1", "--drain", "0"]);
    let begun = [(PATH, true), ("/v1/messages", true), (PATH, false)].map(|(path, stream)| {
        let body = ask(json!({ "max_tokens": 480, "ignore_eos": true, "stream": stream })).to_string();
        let mut connection = serving.connect();
        let length = body.len();
        write!(
            connection,
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        if stream {
            connection.read_exact(&mut [0; 100]).unwrap();
        }
        connection
    });
    wait_until("all answers to be open", || {
        serving.get("/metrics").body.contains("tracewright_answers_open{model=\"demo\"} 3")
    });
    serving.signal("-TERM");
    for (i, mut connection) in begun.into_iter().enumerate() {
        let mut rest = String::new();
        connection.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("the server stops"), "{i}: {rest}");
        assert!(i == 2 && rest.starts_with("HTTP/1.1 503") || rest.ends_with("0\r\n\r\n"), "{i}: {rest}");
        assert!(i != 1 || rest.contains("event: error"), "{rest}");
    }
    assert_eq!(serving.end(), Some(0));
}

/// lm-eval's requests: a look at the tokenizer, and then several prompts as tokens with the probabilities of each.
#[test]
fn the_requests_of_lm_eval_are_answered() {
    let info = DEMO.get("/tokenizer_info").json();
    let tokens = |text: &str| -> Vec<u64> {
        let body = json!({ "prompt": text, "add_special_tokens": false });
        serde_json::from_value(DEMO.good("/tokenize", &body)["tokens"].clone()).unwrap()
    };
    // The text of the token that ends a text is this one token.
    assert_eq!(tokens(info["eos_token"].as_str().unwrap()).len(), 1, "{info}");
    let (context, prompts) =
        (tokens("Once upon").len(), ["Once upon a time", "Once upon a hill there"].map(tokens));
    let body = |prompts: &[Vec<u64>]| {
        json!({
            "model": "demo", "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": true
        })
    };
    // As lm-eval sums them: without the context, and without the generated token.
    let sum = |choice: &Value| {
        let numbers = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        numbers[context..numbers.len() - 1].iter().map(|one| one.as_f64().unwrap()).sum::<f64>()
    };
    let both = DEMO.good("/v1/completions", &body(&prompts));
    assert_eq!(both["choices"].as_array().unwrap().len(), 2);
    for (i, prompt) in prompts.iter().enumerate() {
        let choice = &both["choices"][i];
        assert_eq!(choice["index"], i);
        assert_eq!(choice["logprobs"]["token_logprobs"].as_array().unwrap().len(), prompt.len() + 1);
        let alone = DEMO.good("/v1/completions", &body(std::slice::from_ref(prompt)));
        let (a, b) = (sum(choice), sum(&alone["choices"][0]));
        assert!((a - b).abs() < 1e-6 && a < -0.01, "{a} {b}");
    }
    let decoded = DEMO.good("/detokenize", &json!({ "tokens": prompts[0] }));
    assert_eq!(decoded["prompt"], "Once upon a time");
}

/// lm-eval asks for the probabilities of its prompts.
#[test]
fn a_prompt_is_echoed_with_its_probabilities() {
    let path = "/v1/completions";
    let tokens = DEMO.good("/tokenize", &json!({ "prompt": "Once upon a time" }))["tokens"].clone();
    let count = tokens.as_array().unwrap().len();
    let body = |most: u64| json!({ "prompt": [tokens], "max_tokens": most, "logprobs": 1, "echo": true, "cache_prompt": false });
    let whole = DEMO.good(path, &body(1));
    let logprobs = &whole["choices"][0]["logprobs"];
    let numbers = logprobs["token_logprobs"].as_array().unwrap();
    assert_eq!(numbers.len(), count + 1);
    assert!(numbers[0].is_null() && logprobs["top_logprobs"][0].is_null(), "{logprobs}");
    for (number, top) in numbers.iter().zip(logprobs["top_logprobs"].as_array().unwrap()).skip(1) {
        let most =
            top.as_object().unwrap().values().map(|one| one.as_f64().unwrap()).fold(f64::MIN, f64::max);
        assert!(number.as_f64().unwrap() <= most && most < 0.0, "{logprobs}");
    }
    let text = whole["choices"][0]["text"].as_str().unwrap();
    let texts: String =
        logprobs["tokens"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
    assert!(texts.ends_with(text) && text.starts_with("Once upon a time"), "{texts}: {text}");
    // The same numbers as those of generated tokens.
    let mut half = body(1);
    half["prompt"] = json!([tokens.as_array().unwrap()[..count - 1]]);
    let next = DEMO.good(path, &half);
    let near = |a: &Value, b: &Value| (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-4;
    let (a, b) = (&next["choices"][0]["logprobs"], count - 1);
    if a["tokens"][b] == logprobs["tokens"][b] {
        assert!(near(&a["token_logprobs"][b], &numbers[b]), "{a} {logprobs}");
    }
    let none = DEMO.good(path, &body(0));
    assert_eq!(
        (&none["choices"][0]["finish_reason"], &none["usage"]["completion_tokens"]),
        (&json!("length"), &json!(0))
    );
    assert_eq!(none["choices"][0]["logprobs"]["token_logprobs"], json!(numbers[..count]));
    assert_eq!(none["usage"]["prompt_tokens"], count);
    let mut streamed = body(1);
    streamed["stream"] = json!(true);
    let events = DEMO.post(path, &streamed).events();
    let all = events.iter().filter_map(|event| event["choices"][0]["logprobs"]["token_logprobs"].as_array());
    assert_eq!(all.flatten().cloned().collect::<Vec<_>>(), *numbers);
}
