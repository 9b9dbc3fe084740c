//! Ollama's interface, which answers in lines of JSON.

use serde_json::{Value, json};

use crate::client::*;
use crate::support::*;

const QUESTION: &str = "Tell me a story about a brave owl.";

/// The lines of a streamed answer.
#[track_caller]
fn lines(response: &Response) -> Vec<Value> {
    assert_eq!(response.status, 200, "{}", response.body);
    assert!(response.head.contains("application/x-ndjson"), "{}", response.head);
    response.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The message of an error in Ollama's form.
#[track_caller]
fn refusal(path: &str, body: &Value, status: u16) -> String {
    let response = DEMO.post(path, body);
    assert_eq!(response.status, status, "{body}: {}", response.body);
    response.json()["error"].as_str().unwrap().to_owned()
}

#[test]
fn a_chat_has_the_text_of_openais_interface() {
    let messages = json!([{ "role": "user", "content": QUESTION }]);
    let expected = DEMO
        .good("/v1/chat/completions", &json!({ "messages": messages, "max_tokens": 24, "temperature": 0 }));
    let expected = expected["choices"][0]["message"]["content"].clone();
    let ask = |more: &Value| {
        let mut body = json!({ "model": "demo:latest", "messages": messages, "options": { "num_predict": 24, "temperature": 0, "num_ctx": 512 } });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let whole = DEMO.good("/api/chat", &ask(&json!({ "stream": false })));
    assert_eq!(whole["message"], json!({ "role": "assistant", "content": expected }));
    assert_eq!((&whole["done"], &whole["done_reason"]), (&json!(true), &json!("length")));
    assert_eq!((&whole["eval_count"], &whole["model"]), (&json!(24), &json!("demo:latest")));
    assert!(
        whole["eval_duration"].as_u64() > Some(0) && whole["total_duration"].as_u64() > Some(0),
        "{whole}"
    );
    let streamed = lines(&DEMO.post("/api/chat", &ask(&json!({}))));
    let (last, parts) = streamed.split_last().unwrap();
    assert!(parts.len() > 5 && parts.iter().all(|part| part["done"] == false));
    let text: String = parts.iter().map(|part| part["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(json!(text), expected);
    assert_eq!(
        (&last["done"], &last["eval_count"], &last["prompt_eval_count"]),
        (&json!(true), &json!(24), &whole["prompt_eval_count"])
    );
    // One prompt, as the chat template renders it; and the same text without one.
    let asked = DEMO.good("/api/generate", &json!({ "model": "demo", "prompt": QUESTION, "system": "", "stream": false, "options": { "num_predict": 24, "temperature": 0 } }));
    assert_eq!(asked["response"], expected);
    let prompt = DEMO.good("/apply-template", &json!({ "messages": messages }))["prompt"].clone();
    let continued =
        DEMO.good("/v1/completions", &json!({ "prompt": prompt, "max_tokens": 8, "temperature": 0 }));
    let raw = json!({ "model": "demo", "prompt": prompt, "raw": true, "stream": false, "options": { "num_predict": 8, "temperature": 0 } });
    assert_eq!(DEMO.good("/api/generate", &raw)["response"], continued["choices"][0]["text"]);
}

#[test]
fn an_answer_follows_its_format_and_calls_functions() {
    let schema = json!({ "type": "object", "properties": { "legs": { "type": "integer", "minimum": 0, "maximum": 9 } }, "required": ["legs"] });
    let messages = json!([{ "role": "user", "content": QUESTION }]);
    let body = json!({ "model": "demo", "messages": messages, "stream": false, "format": schema });
    let answer = DEMO.good("/api/chat", &body)["message"]["content"].clone();
    let answer: Value = serde_json::from_str(answer.as_str().unwrap()).unwrap();
    assert!(answer["legs"].is_u64(), "{answer}");
    let tool = json!({ "type": "function", "function": { "name": "weather", "parameters": schema } });
    // A call of an earlier answer, and its result.
    let call = json!({ "function": { "name": "weather", "arguments": { "legs": 2 } } });
    let turns = json!([
        { "role": "user", "content": QUESTION },
        { "role": "assistant", "content": "", "tool_calls": [call] },
        { "role": "tool", "tool_name": "weather", "content": "warm" },
    ]);
    let body = json!({ "model": "demo", "messages": turns, "tools": [tool], "stream": false, "options": { "num_predict": 8 } });
    assert!(DEMO.good("/api/chat", &body)["message"]["content"].is_string());
}

#[test]
fn what_is_not_supported_is_refused_in_ollamas_form() {
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    let options = |options: Value| json!({ "model": "demo", "messages": messages, "options": options });
    for (path, body, part) in [
        ("/api/chat", json!({ "messages": messages }), "`model` is missing"),
        ("/api/chat", options(json!({ "tempurature": 1 })), "`options.tempurature` is no field"),
        ("/api/chat", options(json!({ "num_ctx": 100_000 })), "expected at most 512"),
        ("/api/chat", options(json!({ "num_predict": "x" })), "`options.num_predict` is `\"x\"`"),
        ("/api/chat", options(json!({ "tfs_z": 0.5 })), "`options.tfs_z` is not supported"),
        (
            "/api/chat",
            json!({ "model": "demo", "messages": messages, "format": "xml" }),
            "`format` is `\"xml\"`",
        ),
        ("/api/chat", json!({ "model": "demo", "messages": messages, "think": 5 }), "`think` is `5`"),
        (
            "/api/chat",
            json!({ "model": "demo", "messages": messages, "keep_alive": "soon" }),
            "`keep_alive` is",
        ),
        (
            "/api/chat",
            json!({ "model": "demo", "messages": [{ "role": "user", "content": "a", "images": ["aGk="] }] }),
            "`messages[0].images[0]` is an image, expected a text",
        ),
        (
            "/api/generate",
            json!({ "model": "demo", "prompt": "a", "suffix": "b" }),
            "`suffix` is not supported",
        ),
        (
            "/api/generate",
            json!({ "model": "demo", "prompt": "a", "raw": true, "system": "b" }),
            "`system` is not",
        ),
        (
            "/api/generate",
            json!({ "model": "demo", "prompt": "a", "raw": true, "think": true }),
            "`think` is not",
        ),
        ("/api/generate", json!({ "model": "demo", "prompt": "a", "template": "b" }), "`template` is not"),
        ("/api/embed", json!({ "model": "demo", "input": "a" }), "cannot compute embeddings"),
        (
            "/api/embed",
            json!({ "model": "demo", "input": "a", "truncate": true }),
            "`truncate` is not supported",
        ),
    ] {
        let message = refusal(path, &body, 400);
        assert!(message.contains(part), "{body}: {message}");
    }
    let message = refusal("/api/chat", &json!({ "model": "llama3:latest", "messages": messages }), 404);
    assert!(message.contains("no model `llama3`, expected `demo`"), "{message}");
}

#[test]
fn models_are_listed_loaded_and_unloaded() {
    let other = copied_demo();
    let second = format!("other={}", text(other.path()));
    let serving = Serving::of(&[text(&demo()), &second]);
    let names = |path: &str| -> Vec<String> {
        let models = serving.get(path).json()["models"].as_array().unwrap().clone();
        models.iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        (names("/api/tags"), names("/api/ps")),
        (vec!["demo".into(), "other".into()], vec!["demo".to_owned()])
    );
    // As clients written in Go ask; the model stays as it is.
    let show = json!({ "model": "", "name": "other", "system": "", "template": "", "verbose": false, "options": null });
    assert_eq!(serving.good("/api/show", &show)["capabilities"], json!(["completion", "tools"]));
    assert_eq!(names("/api/ps"), ["demo"]);
    assert_eq!(serving.get("/api/tags").json()["models"][0]["digest"].as_str().unwrap().len(), 64);
    let load = serving.good("/api/generate", &json!({ "model": "other", "keep_alive": "5m" }));
    assert_eq!((&load["done_reason"], &load["response"]), (&json!("load"), &json!("")));
    assert_eq!(names("/api/ps"), ["demo", "other"]);
    let until =
        |i: usize| serving.get("/api/ps").json()["models"][i]["expires_at"].as_str().unwrap().to_owned();
    assert!(until(0).starts_with("2318") && until(1).starts_with("20"), "{}", until(1));
    let ask = |model: &str| json!({ "model": model, "prompt": "Once upon a time", "max_tokens": 8 });
    let text_of = |answer: Value| answer["choices"][0]["text"].clone();
    let expected = text_of(serving.good("/v1/completions", &ask("other")));
    let unload = serving.good("/api/chat", &json!({ "model": "other", "messages": [], "keep_alive": 0 }));
    assert_eq!(unload["done_reason"], "unload");
    assert_eq!(names("/api/ps"), ["demo"]);
    // The first model, too, is opened again.
    for model in ["other", "demo"] {
        assert_eq!(serving.good("/models/unload", &json!({ "model": model })), json!({ "success": true }));
        assert!(!names("/api/ps").iter().any(|name| name == model));
        assert_eq!(serving.get("/v1/models").json()["data"].as_array().unwrap().len(), 2);
        assert_eq!(serving.get(&format!("/slots?model={model}")).json(), json!([]));
        assert_eq!(text_of(serving.good("/v1/completions", &ask(model))), expected);
    }
    // 0 unloads the model after the answer.
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    let last = json!({ "model": "demo", "messages": messages, "keep_alive": 0, "stream": false, "options": { "num_predict": 4 } });
    assert_eq!(serving.good("/api/chat", &last)["eval_count"], 4);
    wait_until("the model to be unloaded", || names("/api/ps") == ["other"]);
    assert_eq!(serving.good("/models/load", &json!({ "model": "demo" })), json!({ "success": true }));
    assert_eq!(serving.bad("/models/load", &json!({ "model": "none" }), 404)["code"], "model_not_found");
    assert_eq!(serving.bad("/models/unload", &json!({}), 400)["param"], "model");
}

#[test]
fn an_idle_model_is_unloaded_and_loaded_again() {
    let serving = Serving::of(&[text(&demo()), "--keep-alive", "1", "--log", "info"]);
    let status = || serving.get("/v1/models").json()["data"][0]["status"]["value"].clone();
    // While an answer runs, the model stays.
    let long = json!({ "prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": true });
    let whole = serving.good("/v1/completions", &long);
    assert_eq!(whole["usage"]["completion_tokens"], 400);
    wait_until("the model to be unloaded", || status() == "unloaded");
    assert!(serving.get("/props").json()["is_sleeping"] == true);
    let again = serving.good("/v1/completions", &long);
    assert_eq!(again["choices"], whole["choices"]);
    assert_eq!(status(), "loaded");
    let log = serving.err.lock().unwrap().clone();
    assert!(log.contains("`demo` is unloaded, because no request names it"), "{log}");
    assert!(serving.get("/metrics").body.contains("tracewright_generated_tokens_total{model=\"demo\"} 800"));
}

#[test]
fn properties_name_slots_and_settings() {
    let props = DEMO.get("/props").json();
    assert_eq!(props["total_slots"], 4);
    assert_eq!(props["default_generation_settings"]["n_ctx"], 512);
    assert!(props["default_generation_settings"]["params"]["top_p"].is_number(), "{props}");
    let slots = DEMO.get("/slots").json();
    assert_eq!(slots.as_array().unwrap().len(), 4);
    assert_eq!(DEMO.get("/slots?model=none").status, 404);
    assert_eq!(DEMO.get("/version").json(), DEMO.get("/api/version").json());
}
