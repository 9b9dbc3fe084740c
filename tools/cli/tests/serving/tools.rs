//! Calls of functions, formats, and messages of every form.

use std::fs;

use serde_json::{Value, json};

use crate::client::*;
use crate::support::*;

const PATH: &str = "/v1/chat/completions";

fn tools() -> Value {
    let tool = |name: &str| {
        let parameters = json!({
            "type": "object",
            "properties": { "city": { "enum": ["Paris", "Rome"] }, "days": { "type": "integer", "minimum": 0, "maximum": 9 } },
            "required": ["city", "days"],
        });
        let function = json!({ "name": name, "description": "Look it up", "parameters": parameters });
        json!({ "type": "function", "function": function })
    };
    json!([tool("weather"), tool("traffic")])
}

fn ask(more: Value) -> Value {
    let mut body =
        json!({ "messages": [{ "role": "user", "content": "Tell me a story." }], "cache_prompt": false });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A streamed answer as a whole one: each delta as clients of OpenAI join it.
fn joined(events: &[Value]) -> Value {
    let (mut content, mut reasoning, mut finish) = (String::new(), String::new(), Value::Null);
    let mut calls: Vec<Value> = Vec::new();
    for event in events {
        let choice = &event["choices"][0];
        let delta = &choice["delta"];
        content += delta["content"].as_str().unwrap_or_default();
        reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            // Each call comes once, with all its fields, under the next index.
            assert_eq!(call["index"], calls.len());
            let mut call = call.clone();
            call.as_object_mut().unwrap().remove("index");
            calls.push(call);
        }
        if !choice["finish_reason"].is_null() {
            assert!(finish.is_null());
            finish = choice["finish_reason"].clone();
        }
    }
    json!({ "content": content, "reasoning": reasoning, "calls": calls, "finish": finish })
}

fn whole(answer: &Value) -> Value {
    let choice = &answer["choices"][0];
    let message = &choice["message"];
    json!({
        "content": message["content"].as_str().unwrap_or_default(),
        "reasoning": message["reasoning_content"].as_str().unwrap_or_default(),
        "calls": message.get("tool_calls").cloned().unwrap_or_else(|| json!([])),
        "finish": choice["finish_reason"],
    })
}

/// The same answer both ways, apart from the ids of calls.
#[track_caller]
fn both(serving: &Serving, body: &Value) -> Value {
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let mut answers = [whole(&serving.good(PATH, body)), joined(&serving.post(PATH, &streamed).events())];
    for answer in &mut answers {
        for call in answer["calls"].as_array_mut().unwrap() {
            let id = call.as_object_mut().unwrap().remove("id").unwrap();
            assert_eq!(id.as_str().unwrap().len(), 9);
            assert_eq!(call["type"], "function");
        }
    }
    let [whole, streamed] = answers;
    assert_eq!(streamed, whole);
    whole
}

#[test]
fn a_required_call_follows_its_schema_both_ways() {
    for choice in [json!("required"), json!({ "type": "function", "function": { "name": "traffic" } })] {
        let answer = both(&DEMO, &ask(json!({ "tools": tools(), "tool_choice": choice })));
        assert_eq!((&answer["finish"], &answer["content"]), (&json!("tool_calls"), &json!("")));
        let call = &answer["calls"][0]["function"];
        assert!(choice == "required" || call["name"] == "traffic", "{answer}");
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert!(["Paris", "Rome"].map(Value::from).contains(&arguments["city"]), "{answer}");
        assert!(arguments["days"].as_u64().unwrap() <= 9, "{answer}");
    }
    let none = both(&DEMO, &ask(json!({ "tools": tools(), "tool_choice": "none", "max_tokens": 8 })));
    let without = both(&DEMO, &ask(json!({ "max_tokens": 8 })));
    assert_eq!(none, without);
    let free = both(&DEMO, &ask(json!({ "tools": tools(), "max_tokens": 30 })));
    assert_eq!(free["finish"], "length");
    for (choice, words) in [
        (json!("all"), "an object that names"),
        (json!({ "type": "function", "function": { "name": "x" } }), "one of `tools`"),
    ] {
        let error = DEMO.bad(PATH, &ask(json!({ "tools": tools(), "tool_choice": choice })), 400);
        assert_eq!(error["param"], "tool_choice");
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
    DEMO.bad(PATH, &ask(json!({ "tool_choice": "required" })), 400);
}

/// A model whose template writes these words in front of the answer, so that the text has any form.
fn writing(answer: &str) -> Value {
    json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": { "const": answer } } } })
}

#[test]
fn tools_of_unknown_types_are_skipped() {
    let odd = json!([{ "type": "web_search" }, { "type": "custom", "custom": {} }, { "type": "mcp", "server_url": "x" }]);
    let answer = both(&DEMO, &ask(json!({ "tools": odd, "max_tokens": 8 })));
    assert_eq!(answer, both(&DEMO, &ask(json!({ "max_tokens": 8 }))));
    let body = ask(json!({ "tools": [{ "type": "function", "function": { "name": "" } }] }));
    assert_eq!(DEMO.bad(PATH, &body, 400)["param"], "tools[0].function.name");
}

/// Whole conversations with calls and results, in every form that clients send.
#[test]
fn messages_of_every_form_are_rendered() {
    let call = json!({ "id": "123456789", "type": "function", "function": { "name": "weather", "arguments": "{\"city\":\"Paris\"}" } });
    let messages = json!([
        { "role": "developer", "content": "Be short." },
        { "role": "user", "content": [{ "type": "text", "text": "Is it" }, { "type": "text", "text": "warm?" }], "name": "Ada" },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": null, "content": "20 degrees" },
        { "role": "assistant", "content": "Yes.", "tool_calls": null, "refusal": null },
        { "role": "system", "content": "Be long." },
        { "role": "user", "content": "And now?" },
    ]);
    let prompt =
        DEMO.good("/apply-template", &json!({ "messages": messages, "tools": tools() }))["prompt"].clone();
    let prompt = prompt.as_str().unwrap();
    // The shipped template knows no tools, so a system message describes them.
    for part in [
        "You can call functions",
        "\"name\":\"traffic\"",
        "Be short.",
        "Be long.",
        "Is it\nwarm?",
        "{\"name\":\"weather\",\"arguments\":{\"city\":\"Paris\"}}",
        "20 degrees",
        "And now?",
    ] {
        assert!(prompt.contains(part), "{part}: {prompt}");
    }
    assert!(
        prompt.find("Be short.") < prompt.find("Be long.") && prompt.matches("role").count() == 0,
        "{prompt}"
    );
    DEMO.good(PATH, &json!({ "messages": messages, "tools": tools(), "max_tokens": 2 }));
    let image =
        json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "x" } }] }]);
    let error = DEMO.bad(PATH, &json!({ "messages": image }), 400);
    assert_eq!(error["param"], "messages[0].content[0].image_url.url");
}

/// Templates that take a system message at the beginning only, or none, and templates that read tools.
#[test]
fn a_system_message_may_stand_anywhere() {
    let first_only = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning') }}{% endif %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if tools %}{{ tools[0].function.name }} {{ mood }}{% endif %}";
    let never = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}[{{ m.role }}] {{ m.content }}\n{% endfor %}";
    let refuses = "{{ raise_exception('not today') }}";
    let folders: Vec<_> = [first_only, never, refuses]
        .map(|template| {
            let model = copied_demo();
            fs::write(model.path().join("chat_template.jinja"), template).unwrap();
            model
        })
        .into();
    let named: Vec<String> = ["first", "never", "refuses"]
        .iter()
        .zip(&folders)
        .map(|(name, folder)| format!("{name}={}", text(folder.path())))
        .collect();
    let arguments: Vec<&str> = named.iter().map(String::as_str).collect();
    let isolated = [&arguments[..], &["--isolate-templates"]].concat();
    for arguments in [arguments, isolated] {
        let serving = Serving::of(&arguments);
        let messages =
            json!([{ "role": "user", "content": "Hi" }, { "role": "system", "content": "Be short" }]);
        let rendered = |model: &str, more: Value| {
            let mut body = json!({ "messages": messages, "model": model });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serving.post("/apply-template", &body)
        };
        assert_eq!(rendered("first", json!({})).json()["prompt"], "[system] Be short\n[user] Hi\n");
        assert_eq!(rendered("never", json!({})).json()["prompt"], "[user] Be short\n\nHi\n");
        let with = json!({ "tools": tools(), "chat_template_kwargs": { "mood": "glad" } });
        assert_eq!(
            rendered("first", with.clone()).json()["prompt"],
            "[system] Be short\n[user] Hi\nweather glad"
        );
        let described = rendered("never", with).body;
        assert!(described.contains("You can call functions"), "{described}");
        let error = rendered("refuses", json!({}));
        assert_eq!(error.status, 400, "{error:?}");
        assert!(error.error()["message"].as_str().unwrap().contains("not today"), "{error:?}");
    }
}

/// JSON numbers of all kinds reach the prompt as Python prints them, wherever a request contains them.
/// `tests/oracle/values.py` wrote the documents and Python's texts.
#[test]
fn numbers_keep_their_texts() {
    let path = fixture("numbers.json");
    let cases: Vec<(String, String)> = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let template = "{% for x in list %}{{ x|tojson }}\n{% endfor %}{% for t in tools %}{% for x in t.function.parameters.default %}\
                    {{ x|tojson }}\n{% endfor %}{% endfor %}{% for m in messages %}{% for c in m.tool_calls %}{% for x in c.function.arguments.list %}\
                    {{ x|tojson }}\n{% endfor %}{% endfor %}{% endfor %}";
    let model = copied_demo();
    fs::write(model.path().join("chat_template.jinja"), template).unwrap();
    let list = format!("[{}]", cases.iter().map(|(text, _)| &**text).collect::<Vec<_>>().join(","));
    let arguments = Value::from(format!("{{\"list\": {list}}}"));
    let call = |arguments: &str| {
        format!(r#"{{"id": "1", "type": "function", "function": {{"name": "f", "arguments": {arguments}}}}}"#)
    };
    let calls = [call(&arguments.to_string()), call(arguments.as_str().unwrap())].join(",");
    let body = format!(
        r#"{{"messages": [{{"role": "user", "content": "a"}}, {{"role": "assistant", "tool_calls": [{calls}]}}],
        "tools": [{{"type": "function", "function": {{"name": "f", "parameters": {{"default": {list}}}}}}}],
        "chat_template_kwargs": {{"list": {list}}}}}"#
    );
    let expected: String = (0..4).flat_map(|_| &cases).map(|(_, dumped)| format!("{dumped}\n")).collect();
    for isolated in [&[][..], &["--isolate-templates"]] {
        let serving = Serving::of(&[&[text(model.path())], isolated].concat());
        let response =
            serving.ask("POST /apply-template HTTP/1.1\r\nContent-Type: application/json", body.as_bytes());
        assert_eq!(response.json()["prompt"].as_str().unwrap(), expected);
    }
    let error = DEMO.ask(
        &format!("POST {PATH} HTTP/1.1\r\nContent-Type: application/json"),
        br#"{"messages": [{"role": "user", "content": "a"}], "temperature": 1e400}"#,
    );
    assert_eq!((error.status, error.error()["param"].as_str()), (400, Some("temperature")), "{error:?}");
}

#[test]
fn answers_follow_a_schema() {
    let schema = json!({ "type": "object", "properties": { "animal": { "enum": ["owl", "fox"] } }, "required": ["animal"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "animal", "strict": true, "schema": schema } });
    let answer = both(&DEMO, &ask(json!({ "response_format": format, "max_tokens": 40 })));
    let animal: Value = serde_json::from_str(answer["content"].as_str().unwrap()).unwrap();
    assert!(animal == json!({ "animal": "owl" }) || animal == json!({ "animal": "fox" }), "{animal}");
    assert_eq!(answer["finish"], "stop");
    // With tools, the answer is a call or follows the schema.
    let answer = both(&DEMO, &ask(json!({ "response_format": format, "tools": tools(), "max_tokens": 60 })));
    assert_ne!(answer["finish"], "length", "{answer}");
    let object = both(&DEMO, &ask(json!({ "response_format": { "type": "json_object" }, "max_tokens": 10 })));
    assert!(object["content"].as_str().unwrap().starts_with('{'), "{object}");
    for (format, words) in [
        (
            json!({ "type": "json_schema", "json_schema": { "schema": { "type": "strin" } } }),
            "follow the schema",
        ),
        (
            json!({ "type": "json_schema", "json_schema": { "schema": { "type": "string", "pattern": "(" } } }),
            "follow the schema",
        ),
        (json!({ "type": "json_schema" }), "a JSON Schema"),
        (json!({ "type": "yaml" }), "`json_object`"),
        (json!("json"), "`json_object`"),
    ] {
        let error = DEMO.bad(PATH, &ask(json!({ "response_format": format })), 400);
        assert!(error["param"].as_str().unwrap().starts_with("response_format"), "{error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
}

/// Characters of several tokens arrive whole.
#[test]
fn a_delta_never_has_half_a_character() {
    let text = "👍 é 日本 🇫🇷";
    let mut body = ask(writing(text));
    body["stream"] = json!(true);
    let events = DEMO.post(PATH, &body).events();
    let deltas: Vec<&str> =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert!(deltas.len() > 4 && deltas.iter().all(|delta| !delta.contains('\u{FFFD}')), "{deltas:?}");
    assert_eq!(serde_json::from_str::<String>(&deltas.concat()).unwrap(), text);
}

#[test]
fn probabilities_belong_to_the_text_both_ways() {
    let body = json!({ "logprobs": true, "top_logprobs": 3, "max_tokens": 12 });
    let answer = DEMO.good(PATH, &ask(body.clone()));
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(content.len(), 12);
    let text: String = content.iter().map(|one| one["token"].as_str().unwrap()).collect();
    assert_eq!(text, answer["choices"][0]["message"]["content"]);
    for one in &content {
        let top = one["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // Greedy: the chosen token is the most likely.
        assert_eq!((&top[0]["token"], &top[0]["logprob"]), (&one["token"], &one["logprob"]));
        let bytes: Vec<u8> = serde_json::from_value(one["bytes"].clone()).unwrap();
        assert_eq!(String::from_utf8(bytes).unwrap(), one["token"].as_str().unwrap());
    }
    let mut streamed = ask(body);
    streamed["stream"] = json!(true);
    let events = DEMO.post(PATH, &streamed).events();
    let entries = events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(entries.flatten().cloned().collect::<Vec<_>>(), content);
}

#[test]
fn seeds_and_several_answers() {
    let texts = |more: Value| -> Vec<String> {
        let mut body = ask(json!({ "temperature": 1.5, "max_tokens": 12, "ignore_eos": true }));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = DEMO.good(PATH, &body);
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(answer["usage"]["completion_tokens"], 12 * choices.len());
        assert_eq!(answer["usage"]["prompt_tokens"], 15);
        choices.iter().map(|choice| choice["message"]["content"].as_str().unwrap().to_owned()).collect()
    };
    let three = texts(json!({ "seed": 7, "n": 3 }));
    assert_eq!(three, texts(json!({ "seed": 7, "n": 3 })));
    assert!(three[0] != three[1] && three[1] != three[2], "{three:?}");
    assert_eq!(three[1], texts(json!({ "seed": 8 }))[0]);
    assert_ne!(texts(json!({})), texts(json!({})));
}

#[test]
fn a_prompt_that_begins_as_an_earlier_one_is_cached() {
    let serving = Serving::of(&[text(&demo())]);
    let mut messages = vec![json!({ "role": "user", "content": "Tell me a story about a brave owl." })];
    let body = |messages: &[Value]| json!({ "messages": messages, "max_tokens": 12 });
    let first = serving.good(PATH, &body(&messages));
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    messages.push(first["choices"][0]["message"].clone());
    messages.push(json!({ "role": "user", "content": "Go on." }));
    let second = serving.good(PATH, &body(&messages));
    let prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(
        second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() >= prompt,
        "{second}"
    );
}
