//! Each field of a request has an effect, or is marked in `openapi.json`, or is refused: none is ignored in silence.

use serde_json::{Value, json};

use crate::client::*;

const CHAT: &str = "/v1/chat/completions";

/// The paths with fields of OpenAI's and Anthropic's clients. Another test compares the names.
const PATHS: [&str; 4] = [CHAT, "/v1/completions", "/v1/responses", "/v1/messages"];

/// A body that the path answers with one token.
fn body(path: &str) -> Value {
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    match path {
        "/v1/completions" => json!({ "prompt": "Hi", "max_tokens": 1 }),
        "/v1/responses" => json!({ "input": "Hi", "max_output_tokens": 1 }),
        _ => json!({ "messages": messages, "max_tokens": 1 }),
    }
}

fn with(path: &str, name: &str, value: Value) -> Value {
    let mut body = body(path);
    body[name] = value;
    body
}

/// The parts of an answer that a field could change.
fn text(answer: &Value) -> Value {
    let content = [&answer["choices"], &answer["content"]].map(Value::clone);
    let output = answer["output"].as_array().map(|items| items[0]["content"].clone());
    json!([content, output])
}

/// A value with which a request is answered, for a supported field whose type allows values that are refused.
fn example(path: &str, name: &str, field: &Value) -> Value {
    let function = json!({ "name": "f", "parameters": { "type": "object", "properties": {} } });
    match name {
        "messages" => json!([{ "role": "user", "content": "Hi" }]),
        "prompt" | "input" | "system" | "instructions" | "stop" | "user" => json!("Hi"),
        "model" => json!("demo"),
        "functions" => json!([function]),
        "tools" => match path {
            CHAT => json!([{ "type": "function", "function": function }]),
            "/v1/responses" => json!([{ "type": "function", "name": "f", "parameters": {} }]),
            _ => json!([{ "name": "f", "input_schema": {} }]),
        },
        "tool_choice" | "function_call" => json!(null),
        "response_format" => json!({ "type": "json_object" }),
        "text" => json!({ "format": { "type": "text" } }),
        "output_config" => json!({ "effort": "low", "format": { "type": "json_schema", "schema": {} } }),
        "output_format" => json!({ "type": "json_schema", "schema": {} }),
        "grammar" | "guided_grammar" | "ebnf" => json!("start: \"a\""),
        "json_schema" | "guided_json" => json!({ "type": "integer" }),
        "structured_outputs" => json!({ "regex": "a" }),
        "guided_choice" => json!(["a"]),
        "logit_bias" => json!({ "5": -100 }),
        "samplers" => json!(["top_k"]),
        "top_logprobs" | "seed" => json!(0),
        "reasoning_format" => json!("none"),
        "continue_final_message" | "echo" | "background" => json!(false),
        "previous_response_id" | "suffix" => json!(null),
        "thinking" => json!({ "type": "disabled" }),
        "stream_options" => json!({ "include_usage": true }),
        _ => {
            let kind = field["type"].as_array().map_or(&field["type"], |kinds| &kinds[0]);
            match kind.as_str() {
                Some("boolean") => json!(true),
                Some("string") => json!("a"),
                Some("array") => json!([]),
                Some("integer" | "number") => {
                    let least = field["minimum"].as_f64().or(field["exclusiveMinimum"].as_f64());
                    json!(least.unwrap_or(0.0).max(1.0).min(field["maximum"].as_f64().unwrap_or(1.0)) as i64)
                }
                _ => json!({}),
            }
        }
    }
}

/// `openapi.json` lists all fields, and each does what its mark tells.
/// Whether the text of an answer follows the request's constraint.
type IsValid<'a> = &'a dyn Fn(&str) -> bool;

#[test]
fn every_field_is_supported_or_refused_or_marked() {
    let document = DEMO.get("/openapi.json").json();
    let mut counts = [0; 3];
    for path in PATHS {
        let schema = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
        let fields = schema["allOf"][0]["properties"].as_object().unwrap();
        let plain = text(&DEMO.good(path, &body(path)));
        for (name, field) in fields {
            match field["x-support"].as_str() {
                Some("supported") => {
                    let mut body = with(path, name, example(path, name, field));
                    if name == "top_logprobs" {
                        body["logprobs"] = json!(true);
                    }
                    let response = DEMO.post(path, &body);
                    assert_eq!(response.status, 200, "{path} {body}: {}", response.body);
                    counts[0] += 1;
                }
                Some("refused") => {
                    let error = DEMO.post(path, &with(path, name, json!("\u{1}unusual")));
                    assert_eq!(error.status, 400, "{path} {name}: {}", error.body);
                    assert!(error.body.contains(&format!("`{name}` is not supported")), "{}", error.body);
                    for value in field["enum"].as_array().unwrap() {
                        DEMO.good(path, &with(path, name, value.clone()));
                    }
                    counts[1] += 1;
                }
                mark => {
                    assert_eq!(mark, Some("without effect"), "{path} {name}");
                    let answer = DEMO.good(path, &with(path, name, json!({ "a": [1] })));
                    assert_eq!(text(&answer), plain, "{path} {name}");
                    counts[2] += 1;
                }
            }
        }
        let unknown = DEMO.post(path, &with(path, "gramar", json!("x")));
        assert_eq!(unknown.status, 400, "{}", unknown.body);
        assert!(unknown.body.contains("`gramar` is no field"), "{}", unknown.body);
    }
    assert!(counts.iter().all(|&count| count > 20), "{counts:?}");
}

/// The text of an answer, the same whole and streamed.
#[track_caller]
fn answered(path: &str, more: &Value) -> String {
    let mut body = body(path);
    let most = if path == "/v1/responses" { "max_output_tokens" } else { "max_tokens" };
    body[most] = json!(60);
    body["cache_prompt"] = json!(false);
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = DEMO.good(path, &body);
    let whole = match path {
        CHAT => &answer["choices"][0]["message"]["content"],
        "/v1/completions" => &answer["choices"][0]["text"],
        "/v1/responses" => &answer["output"][0]["content"][0]["text"],
        _ => &answer["content"][0]["text"],
    };
    body["stream"] = json!(true);
    let events = DEMO.post(path, &body);
    let data = events.body.lines().filter_map(|line| line.strip_prefix("data: "));
    let data = data.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let delta = |event: Value| {
        let choice = &event["choices"][0];
        let delta = match path {
            CHAT => &choice["delta"]["content"],
            "/v1/completions" => &choice["text"],
            "/v1/responses" => &event["delta"],
            _ => &event["delta"]["text"],
        };
        delta.as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(data.map(delta).collect::<String>(), *whole, "{path} {more}");
    whole.as_str().unwrap().to_owned()
}

#[test]
fn a_constraint_is_never_dropped() {
    let schema = json!({
        "type": "object", "properties": { "animal": { "enum": ["owl", "fox"] } }, "required": ["animal"],
        "additionalProperties": false,
    });
    let is_animal = |text: &str| {
        let value = serde_json::from_str::<Value>(text).unwrap_or_default();
        value["animal"] == "owl" || value["animal"] == "fox"
    };
    let is_word = |text: &str| text == "owl" || text == "fox";
    let is_number = |text: &str| text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
    let grammar = "start: \"owl\" | \"fox\"";
    let cases: Vec<(Value, IsValid<'_>)> = vec![
        (json!({ "json_schema": schema }), &is_animal),
        (json!({ "json_schema": schema.to_string() }), &is_animal),
        (json!({ "response_format": { "type": "json_object", "schema": schema } }), &is_animal),
        (json!({ "response_format": { "type": "json_schema", "schema": schema } }), &is_animal),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": schema } } }),
            &is_animal,
        ),
        (json!({ "response_format": { "type": "grammar", "grammar": grammar } }), &is_word),
        (json!({ "response_format": { "type": "regex", "pattern": "[0-9]{3}" } }), &is_number),
        (json!({ "guided_json": schema }), &is_animal),
        (json!({ "structured_outputs": { "json": schema, "choice": null } }), &is_animal),
        (json!({ "grammar": grammar, "json_schema": null, "guided_regex": "" }), &is_word),
        (json!({ "ebnf": grammar }), &is_word),
        (json!({ "guided_grammar": grammar }), &is_word),
        (json!({ "guided_choice": ["owl", "fox"] }), &is_word),
        (
            json!({ "structured_outputs": { "choice": ["owl", "fox"], "disable_any_whitespace": true } }),
            &is_word,
        ),
        (json!({ "structured_outputs": { "grammar": grammar } }), &is_word),
        (json!({ "regex": "^[0-9]{3}$" }), &is_number),
        (json!({ "guided_regex": "[0-9]{3}" }), &is_number),
        (json!({ "structured_outputs": { "regex": "[0-9]{3}" } }), &is_number),
        (json!({ "regex": "a/b\\/c" }), &|text| text == "a/b/c"),
    ];
    for (more, is_right) in &cases {
        let text = answered(CHAT, more);
        assert!(is_right(&text), "{more}: {text}");
    }
    for path in ["/v1/completions", "/v1/responses", "/v1/messages"] {
        assert!(is_animal(&answered(path, &json!({ "json_schema": schema }))), "{path}");
        assert!(is_word(&answered(path, &json!({ "grammar": grammar }))), "{path}");
    }
    let format = json!({ "type": "json_schema", "schema": schema });
    assert!(is_animal(&answered("/v1/messages", &json!({ "output_config": { "format": format } }))));
    assert!(is_animal(&answered("/v1/messages", &json!({ "output_format": format }))));
    for (more, param, words) in [
        (json!({ "grammar": "start: ((" }), "grammar", "grammar"),
        (json!({ "grammar": "root ::= \"a\"" }), "grammar", "Lark"),
        (json!({ "guided_json": 5 }), "guided_json", "a JSON Schema"),
        (json!({ "guided_regex": "(" }), "guided_regex", ""),
        (json!({ "guided_choice": [] }), "guided_choice", "at least one"),
        (json!({ "grammar": grammar, "guided_json": schema }), "guided_json", "`grammar` is set"),
        (
            json!({ "structured_outputs": { "structural_tag": {} } }),
            "structured_outputs.structural_tag",
            "not supported",
        ),
        (json!({ "chat_template": "x" }), "chat_template", "not supported"),
        (
            json!({ "grammar": grammar, "tools": [{ "type": "function", "function": { "name": "f" } }] }),
            "grammar",
            "tools",
        ),
    ] {
        let mut body = body(CHAT);
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let error = DEMO.bad(CHAT, &body, 400);
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
    let mut forced = with(CHAT, "grammar", json!(grammar));
    forced["tools"] = json!([{ "type": "function", "function": { "name": "f" } }]);
    forced["tool_choice"] = json!("required");
    assert_eq!(DEMO.bad(CHAT, &forced, 400)["param"], "grammar");
    let refused =
        DEMO.post("/v1/messages", &with("/v1/messages", "output_config", json!({ "task_budget": 5 })));
    assert_eq!(refused.status, 400, "{}", refused.body);
}

#[test]
fn tokens_end_and_bias_an_answer() {
    let ask = |more: Value| {
        let mut body =
            json!({ "prompt": "Once upon a time", "max_tokens": 8, "logprobs": 0, "cache_prompt": false });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        DEMO.good("/v1/completions", &body)
    };
    let whole = ask(json!({}));
    let texts = |answer: &Value| answer["choices"][0]["logprobs"]["tokens"].as_array().unwrap().clone();
    let id = |text: &str| DEMO.good("/tokenize", &json!({ "content": text }))["tokens"][0].clone();
    let third = texts(&whole)[2].as_str().unwrap().to_owned();
    let token = id(&third);
    let ended = ask(json!({ "stop_token_ids": [token] }));
    assert_eq!(ended["choices"][0]["finish_reason"], "stop");
    assert_eq!(
        ended["choices"][0]["text"],
        texts(&whole)[..2].iter().map(|one| one.as_str().unwrap()).collect::<String>()
    );
    for bias in [json!({ token.to_string(): -100 }), json!([[token, false]])] {
        let biased = ask(json!({ "logit_bias": bias }));
        assert!(!texts(&biased).contains(&json!(third)), "{biased}");
    }
    let favoured = ask(json!({ "logit_bias": { token.to_string(): 100 } }));
    assert!(texts(&favoured).iter().all(|one| *one == json!(third)), "{favoured}");
    for (more, param) in [
        (json!({ "logit_bias": { "x": 1 } }), "logit_bias"),
        (json!({ "logit_bias": { "5": 200 } }), "logit_bias"),
        (json!({ "logit_bias": [[5]] }), "logit_bias"),
        (json!({ "stop_token_ids": [4_000_000_000_u32] }), "stop_token_ids[0]"),
    ] {
        let mut body = json!({ "prompt": "Hi" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(DEMO.bad("/v1/completions", &body, 400)["param"], param, "{body}");
    }
}
