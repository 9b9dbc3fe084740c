//! Each field of the objects inside a request does what `openapi.json` marks, and no other field is accepted.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::client::*;

/// The fields of the request types of openai and anthropic, which `tests/oracle/client_fields.py` lists.
const CLIENTS: &str = include_str!("client_fields.txt");

/// Parts that only some models read, which have tests of their own.
const MEDIA: [&str; 4] = ["image_url", "input_image", "input_audio", "image"];

/// Requests that together have all supported fields of all objects.
fn examples() -> Vec<(&'static str, Value)> {
    let schema = json!({ "type": "object", "properties": {} });
    let function = json!({ "name": "f", "description": "d", "parameters": schema, "strict": true });
    let user = json!({ "role": "user", "content": "Hi" });
    let name = json!({ "name": "f" });
    let chat = |more: Value| {
        let mut body = json!({ "messages": [user], "max_tokens": 1 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("/v1/chat/completions", body)
    };
    let call = json!({ "name": "f", "arguments": "{}" });
    let tools = json!([{ "type": "function", "function": function }]);
    let typed = json!({ "type": "function", "function": name, "name": "f" });
    let text = json!({ "type": "text", "text": "Hi" });
    let flat =
        json!({ "type": "function", "name": "f", "description": "d", "parameters": schema, "strict": true });
    let allowed = json!({ "mode": "auto", "tools": [typed] });
    let either = json!({ "type": "allowed_tools", "mode": "auto", "tools": [typed] });
    let kept = DEMO.good("/v1/responses", &json!({ "input": "Hi", "max_output_tokens": 1 }));
    let input = json!([
        { "role": "user", "content": [{ "text": "Hi" }, { "refusal": "no", "type": "other" }] },
        { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "Hi" }] },
        { "type": "message", "role": "assistant", "content": [{ "type": "refusal", "refusal": "no" }] },
        { "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "c", "output": [{ "type": "input_text", "text": "1" }] },
        { "type": "reasoning", "summary": [] },
        { "type": "item_reference", "id": kept["output"][0]["id"] },
    ]);
    let blocks = json!([
        text, { "text": "Hi" }, { "text": "Hi", "type": "other" },
        { "type": "document", "title": "t", "context": "c", "source": { "type": "text", "data": "d" } },
        { "type": "document", "source": { "type": "content", "content": [text] } },
        { "type": "search_result", "title": "t", "source": "s", "content": [text] },
    ]);
    let answer = json!([
        { "type": "thinking", "thinking": "Hm" }, { "type": "redacted_thinking", "data": "x" },
        { "type": "tool_use", "id": "c", "name": "f", "input": {} },
    ]);
    let result = json!([{ "type": "tool_result", "tool_use_id": "c", "content": [text] }]);
    let custom =
        json!({ "type": "custom", "name": "f", "description": "d", "input_schema": schema, "strict": true });
    vec![
        chat(json!({
            "messages": [
                { "role": "user", "content": [text, { "type": "refusal", "refusal": "no" }], "name": "n" },
                { "role": "assistant", "content": null, "refusal": "no", "reasoning_content": "Hm",
                  "tool_calls": [{ "id": "c", "type": "function", "function": call }] },
                { "role": "tool", "tool_call_id": "c", "content": "1" },
                { "role": "assistant", "content": null, "function_call": call },
                user,
            ],
            "tools": tools,
        })),
        chat(json!({ "tools": tools, "tool_choice": typed })),
        chat(json!({ "tools": tools, "tool_choice": { "type": "allowed_tools", "allowed_tools": allowed } })),
        chat(json!({ "tools": tools, "tool_choice": either })),
        chat(json!({ "tools": [{ "type": "web_search" }] })),
        chat(json!({ "functions": [function], "function_call": name })),
        chat(json!({ "stream_options": { "include_usage": true } })),
        chat(json!({ "response_format": { "type": "text" } })),
        chat(json!({ "response_format": { "type": "json_object", "schema": schema } })),
        chat(json!({ "response_format": {
            "type": "json_schema", "schema": schema, "strict": true, "json_schema": { "schema": schema, "strict": true },
        } })),
        chat(json!({ "response_format": { "type": "grammar", "grammar": "start: \"a\"" } })),
        chat(json!({ "response_format": { "type": "regex", "pattern": "a", "regex": "a" } })),
        (
            "/v1/responses",
            json!({
                "input": input, "max_output_tokens": 1, "tools": [flat],
                "text": { "format": { "type": "text" } }, "reasoning": { "effort": "low" },
            }),
        ),
        (
            "/v1/responses",
            json!({ "input": "Hi", "max_output_tokens": 1, "tools": [flat], "tool_choice": typed }),
        ),
        (
            "/v1/responses",
            json!({ "input": "Hi", "max_output_tokens": 1, "tools": [flat], "tool_choice": {
            "type": "allowed_tools", "mode": "auto", "tools": [typed], "allowed_tools": allowed,
        } }),
        ),
        (
            "/v1/messages",
            json!({
                "messages": [
                    { "role": "user", "content": blocks }, { "role": "assistant", "content": answer },
                    { "role": "user", "content": result },
                ],
                "max_tokens": 1, "system": [text], "tools": [custom], "thinking": { "type": "enabled" },
            }),
        ),
        (
            "/v1/messages",
            json!({
                "messages": [user], "max_tokens": 1, "tools": [custom],
                "tool_choice": { "type": "tool", "name": "f", "disable_parallel_tool_use": true },
                "output_config": { "effort": "low", "format": { "type": "text" } },
            }),
        ),
        (
            "/v1/messages",
            json!({
                "messages": [user], "max_tokens": 1, "tools": [custom], "thinking": { "type": "disabled" },
                "tool_choice": { "type": "auto", "disable_parallel_tool_use": true },
            }),
        ),
    ]
}

/// The parts of an answer that a field could change.
fn content(answer: &Value) -> Value {
    let first = &answer["output"][0];
    let output = [&first["content"], &first["name"], &first["arguments"]];
    let message = &answer["choices"][0]["message"];
    let calls = &message["tool_calls"][0]["function"];
    json!([output, message["content"], calls, answer["content"][0]["text"], answer["content"][0]["name"]])
}

/// The schema of an object with this type among those of a field.
fn object_of<'a>(field: &'a Value, kind: &str) -> Option<&'a Value> {
    let objects = || field["anyOf"].as_array().into_iter().flatten().filter(|one| one["type"] == "object");
    let kinds = |one: &&Value| one["properties"]["type"]["enum"].as_array().cloned();
    let value = if kind.is_empty() { Value::Null } else { json!(kind) };
    let is_of = |one: &&Value| kinds(one).is_some_and(|kinds| kinds.contains(&value));
    objects().find(is_of).or_else(|| objects().find(|one| kinds(one).is_none()))
}

/// Sends a request with one field more.
fn with(path: &str, body: &Value, pointer: &str, name: &str, value: Value) -> Response {
    let mut body = body.clone();
    body.pointer_mut(pointer).unwrap()[name] = value;
    DEMO.post(path, &body)
}

/// The objects and the supported fields of which a test has sent an example.
#[derive(Default)]
struct Seen {
    /// The objects whose other fields a test has sent, with the endpoint.
    objects: BTreeSet<(String, String)>,
    fields: BTreeSet<(String, String)>,
    counts: [usize; 3],
}

impl Seen {
    /// Sends each field of the objects in a value.
    fn visit(&mut self, path: &str, body: &Value, pointer: &str, at: &str, field: &Value) {
        let value = body.pointer(pointer).unwrap();
        if let Some(list) = value.as_array() {
            for i in 0..list.len() {
                self.visit(path, body, &format!("{pointer}/{i}"), &format!("{at}[{i}]"), field);
            }
        }
        let Some(object) = value.as_object() else { return };
        let kind = value["type"].as_str().unwrap_or_default();
        let Some(schema) = object_of(field, kind).filter(|one| one["x-support"].is_null()) else { return };
        let properties = schema["properties"].as_object().unwrap();
        let is_new = self.objects.insert((path.to_owned(), schema.to_string()));
        let plain = is_new.then(|| content(&DEMO.good(path, body)));
        for (name, inner) in properties {
            if !is_new && inner["x-support"] != "supported" {
                continue;
            }
            let param = format!("`{at}.{name}`");
            match inner["x-support"].as_str() {
                Some("supported") => {
                    if object.contains_key(name) {
                        self.counts[0] += 1;
                        self.fields.insert((schema.to_string(), name.clone()));
                        self.visit(path, body, &format!("{pointer}/{name}"), &format!("{at}.{name}"), inner);
                    }
                }
                Some("refused") => {
                    let refused = with(path, body, pointer, name, json!("\u{1}unusual"));
                    assert_eq!(refused.status, 400, "{path} {param}: {}", refused.body);
                    assert!(refused.body.contains(&format!("{param} is not supported")), "{}", refused.body);
                    for value in inner["enum"].as_array().unwrap() {
                        let answer = with(path, body, pointer, name, value.clone());
                        assert_eq!(answer.status, 200, "{path} {param}: {}", answer.body);
                    }
                    self.counts[1] += 1;
                }
                mark => {
                    assert_eq!(mark, Some("without effect"), "{path} {param}");
                    let answer = with(path, body, pointer, name, json!({ "a": [1] }));
                    assert_eq!(answer.status, 200, "{path} {param}: {}", answer.body);
                    assert_eq!(Some(content(&answer.json())), plain, "{path} {param}");
                    self.counts[2] += 1;
                }
            }
        }
        if !is_new {
            return;
        }
        let unknown = with(path, body, pointer, "gramar", json!("x"));
        assert_eq!(unknown.status, 400, "{path} {at}: {}", unknown.body);
        assert!(unknown.body.contains(&format!("`{at}.gramar` is no field")), "{}", unknown.body);
    }
}

/// Lists the supported fields of all objects inside a field, except in parts that only some models read.
fn supported(field: &Value, found: &mut BTreeSet<(String, String)>) {
    for object in field["anyOf"].as_array().into_iter().flatten() {
        let kinds = object["properties"]["type"]["enum"].as_array();
        let is_media = |kind: &Value| MEDIA.contains(&kind.as_str().unwrap_or_default());
        if object["x-support"].is_string() || kinds.is_some_and(|kinds| kinds.iter().any(is_media)) {
            continue;
        }
        for (name, inner) in object["properties"].as_object().into_iter().flatten() {
            if inner["x-support"] == "supported" {
                found.insert((object.to_string(), name.clone()));
                supported(inner, found);
            }
        }
    }
}

fn fields<'a>(document: &'a Value, path: &str) -> &'a Value {
    let body = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"];
    &body["schema"]["allOf"][0]["properties"]
}

#[test]
fn each_field_of_an_object_does_what_its_mark_tells() {
    let document = DEMO.get("/openapi.json").json();
    let (mut seen, mut wanted) = (Seen::default(), BTreeSet::new());
    for (path, body) in examples() {
        DEMO.good(path, &body);
        for name in body.as_object().unwrap().keys() {
            seen.visit(path, &body, &format!("/{name}"), name, &fields(&document, path)[name]);
        }
        fields(&document, path).as_object().unwrap().values().for_each(|field| supported(field, &mut wanted));
    }
    let missing: Vec<_> = wanted.difference(&seen.fields).collect();
    assert!(missing.is_empty(), "no example has these fields: {missing:?}");
    assert!(seen.counts.iter().all(|&count| count > 15), "{:?}", seen.counts);
}

/// Whether the document has a field with this path, or marks an object around it as a whole.
fn has(properties: &Value, path: &str) -> bool {
    let (step, rest) = path.split_once('.').map_or((path, None), |(step, rest)| (step, Some(rest)));
    let (name, kind) = step.split_once('[').map_or((step, None), |(name, kind)| (name, Some(kind)));
    let kind = kind.map(|kind| kind.trim_end_matches(']'));
    let field = &properties[name];
    if field["x-support"] != "supported" || rest.or(kind).is_none() {
        return field["x-support"].is_string();
    }
    let Some(object) = object_of(field, kind.unwrap_or_default()) else { return false };
    object["x-support"].is_string() || rest.is_none_or(|rest| has(&object["properties"], rest))
}

#[test]
fn the_document_has_each_field_of_the_clients() {
    let document = DEMO.get("/openapi.json").json();
    let lines: Vec<(&str, &str)> = CLIENTS.lines().filter_map(|line| line.split_once(' ')).collect();
    let is_missing = |(path, field): &&(&str, &str)| !has(fields(&document, path), field);
    assert_eq!(lines.iter().filter(is_missing).collect::<Vec<_>>(), Vec::<&(&str, &str)>::new());
    assert!(lines.len() > 700 && !has(fields(&document, "/v1/messages"), "messages[user].gramar"));
}
