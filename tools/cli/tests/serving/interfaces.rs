//! The other interfaces: completions, embeddings, tokens, responses, and Anthropic's messages.

use serde_json::{Value, json};

use crate::client::*;
use crate::support::*;

const QUESTION: &str = "Tell me a story about a brave owl.";

#[test]
fn completions_continue_texts() {
    let path = "/v1/completions";
    let alone = |prompt: &str, count: &str| {
        let mut command = tracewright(&["generate", text(&demo()), "-p", prompt, "-n", count]);
        succeed(command.args(SIZES)).out.trim_end_matches('\n').to_owned()
    };
    let prompts = ["Once upon a time", "The brave owl"];
    let answer = DEMO.good(path, &json!({ "prompt": prompts, "max_tokens": 8, "echo": true }));
    assert_eq!(answer["object"], "text_completion");
    for (i, prompt) in prompts.iter().enumerate() {
        let text = answer["choices"][i]["text"].as_str().unwrap();
        assert_eq!(text.strip_prefix(prompt).unwrap(), alone(prompt, "8"));
        assert_eq!(answer["choices"][i]["finish_reason"], "length");
    }
    // Without a limit there are 16 tokens, as OpenAI's interface declares.
    let usual = DEMO.good(path, &json!({ "prompt": "Once upon a time", "logprobs": 2 }));
    assert_eq!(usual["usage"]["completion_tokens"], 16);
    let logprobs = &usual["choices"][0]["logprobs"];
    let tokens: Vec<String> = serde_json::from_value(logprobs["tokens"].clone()).unwrap();
    assert_eq!(tokens.concat(), usual["choices"][0]["text"].as_str().unwrap());
    assert_eq!(logprobs["text_offset"][1], tokens[0].chars().count());
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
    let tokens = DEMO.good("/tokenize", &json!({ "prompt": "Once upon a time" }))["tokens"].clone();
    let by_tokens = DEMO.good(path, &json!({ "prompt": tokens }));
    assert_eq!(by_tokens["choices"][0]["text"], usual["choices"][0]["text"]);
    let events = DEMO.post(path, &json!({ "prompt": "Once upon a time", "stream": true })).events();
    let streamed: String = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(streamed, usual["choices"][0]["text"].as_str().unwrap());
    for (body, param) in [
        (json!({}), "prompt"),
        (json!({ "prompt": "" , "max_tokens": -2 }), "max_tokens"),
        (json!({ "prompt": 5 }), "prompt"),
        (json!({ "prompt": [1, 99999] }), "prompt"),
        (json!({ "prompt": ["a", 5] }), "prompt"),
    ] {
        assert_eq!(DEMO.bad(path, &body, 400)["param"], param, "{body}");
    }
}

#[test]
fn texts_become_tokens_and_back() {
    let ran = succeed(&mut bare(&["tokenize", text(&demo()), "Once upon a time", "--json"]));
    let expected: Value = serde_json::from_str(&ran.out).unwrap();
    let with = DEMO.good("/tokenize", &json!({ "prompt": "Once upon a time" }));
    assert_eq!(with["count"].as_u64().unwrap() as usize, with["tokens"].as_array().unwrap().len());
    let expected = expected["texts"][0]["tokens"].as_array().unwrap();
    assert_eq!(with["tokens"], expected.iter().map(|token| token["id"].clone()).collect::<Value>());
    let without = DEMO.good("/tokenize", &json!({ "content": "Once upon a time" }));
    assert!(with["count"].as_u64() > without["count"].as_u64());
    let text = DEMO.good("/detokenize", &json!({ "tokens": without["tokens"] }));
    assert_eq!(text["content"], "Once upon a time");
    DEMO.bad("/detokenize", &json!({ "tokens": [1, 99999] }), 400);
    DEMO.bad("/tokenize", &json!({}), 400);
    for (path, body) in [
        ("/tokenize", json!({ "content": "a", "with_piece": true })),
        ("/detokenize", json!({ "tokens": [1], "tokens_": [1] })),
        ("/v1/embeddings", json!({ "input": "a", "dimension": 2 })),
        ("/v1/rerank", json!({ "query": "a", "documents": ["b"], "topn": 1 })),
    ] {
        assert_eq!(DEMO.bad(path, &body, 400)["code"], "unknown_parameter", "{body}");
    }
}

/// Two models, of which the second is loaded by the first request that names it.
#[test]
fn embeddings_are_those_of_the_golden() {
    let embedder = fixture("embeddinggemma");
    let serving = Serving::of(&[text(&demo()), &format!("embedder={}", text(&embedder))]);
    let names: Vec<String> = serving.get("/v1/models").json()["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["demo", "embedder"]);
    assert!(!serving.err.lock().unwrap().contains("loading"));
    let golden: Value =
        serde_json::from_slice(&std::fs::read(embedder.join("golden.json")).unwrap()).unwrap();
    let bytes = std::fs::read(embedder.join("golden.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let texts = golden["texts"].as_array().unwrap();
    let mut compared = 0;
    for (i, one) in texts.iter().enumerate() {
        let data = tensors.tensor(&format!("texts.{i}.embedding")).unwrap().data().to_vec();
        let expected: Vec<f32> = data.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let body = |format: &str| json!({ "model": "embedder", "input": one["text"], "prompt_name": one["prompt"], "encoding_format": format });
        let response = serving.post("/v1/embeddings", &body("float"));
        if response.status == 400 {
            // Longer than the model takes: an error, and no silent cut.
            assert!(
                response.error()["message"].as_str().unwrap().contains("expected at most"),
                "{response:?}"
            );
            continue;
        }
        assert_eq!(response.status, 200, "{}", response.body);
        let answer = response.json();
        let found: Vec<f32> = serde_json::from_value(answer["data"][0]["embedding"].clone()).unwrap();
        let error = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(found.len() == expected.len() && error <= 1e-5, "{error:e}");
        assert_eq!(
            answer["usage"]["prompt_tokens"].as_u64().unwrap() as usize,
            one["tokens"].as_array().unwrap().len()
        );
        let answer = serving.good("/v1/embeddings", &body("base64"));
        let encoded = answer["data"][0]["embedding"].as_str().unwrap();
        let decoded = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, encoded).unwrap();
        let decoded: Vec<f32> =
            decoded.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(decoded, found);
        compared += 1;
    }
    assert!(compared >= 3, "{compared}");
    assert!(serving.err.lock().unwrap().contains("loading"));
    let error = serving.bad(
        "/v1/chat/completions",
        &json!({ "model": "embedder", "messages": [{ "role": "user", "content": "Hi" }] }),
        400,
    );
    assert_eq!(error["message"], "the model `embedder` computes embeddings, and cannot continue text");
    let error = serving.bad("/v1/embeddings", &json!({ "input": "Hi" }), 400);
    assert_eq!(error["message"], "the model `demo` continues text, and cannot compute embeddings");
    for body in [
        json!({ "model": "embedder" }),
        json!({ "model": "embedder", "input": 5 }),
        json!({ "model": "embedder", "input": "a", "encoding_format": "hex" }),
        json!({ "model": "embedder", "input": "a", "dimensions": 31 }),
    ] {
        serving.bad("/v1/embeddings", &body, 400);
    }
}

/// The names of events, and their data.
fn events(response: &Response) -> Vec<(String, Value)> {
    assert_eq!(response.status, 200, "{}", response.body);
    let blocks = response.body.split("\n\n").filter(|block| !block.is_empty());
    blocks
        .map(|block| {
            let (name, data) = block.split_once('\n').unwrap();
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            let name = name.strip_prefix("event: ").unwrap().to_owned();
            assert_eq!(data["type"], name.as_str());
            (name, data)
        })
        .collect()
}

/// The answer of the chat interface.
fn chat(count: usize) -> String {
    let body = json!({ "messages": [{ "role": "user", "content": QUESTION }], "max_tokens": count });
    let answer = DEMO.good("/v1/chat/completions", &body);
    answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

#[test]
fn responses_answer_as_chats_do() {
    let path = "/v1/responses";
    let body = json!({ "input": QUESTION, "max_output_tokens": 20 });
    let answer = DEMO.good(path, &body);
    assert_eq!(answer["status"], "incomplete");
    assert_eq!(answer["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(answer["output"][0]["content"][0]["text"], chat(20));
    assert_eq!(answer["usage"]["output_tokens"], 20);
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let events = events(&DEMO.post(path, &streamed));
    let (last, whole) = events.last().unwrap();
    assert_eq!(last, "response.incomplete");
    assert_eq!(whole["response"]["output"][0]["content"], answer["output"][0]["content"]);
    for (i, (_, data)) in events.iter().enumerate() {
        assert_eq!(data["sequence_number"], i);
    }
    let deltas = events.iter().filter(|(name, _)| name == "response.output_text.delta");
    assert_eq!(deltas.map(|(_, data)| data["delta"].as_str().unwrap()).collect::<String>(), chat(20));
    let items = json!([
        { "role": "user", "content": [{ "type": "input_text", "text": QUESTION }] },
        { "type": "reasoning", "summary": [] },
        { "type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "c1", "output": "warm" },
        { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "Yes" }] },
        { "role": "user", "content": "Go on." },
    ]);
    let tool = json!({ "type": "function", "name": "weather", "parameters": { "type": "object", "properties": { "city": { "enum": ["Paris"] } }, "required": ["city"], "additionalProperties": false } });
    let body = json!({ "input": items, "instructions": "Be short.", "tools": [tool, { "type": "web_search" }], "tool_choice": "required" });
    let answer = DEMO.good(path, &body);
    let call = &answer["output"][0];
    assert_eq!(
        (&call["type"], &call["name"], &call["arguments"]),
        (&json!("function_call"), &json!("weather"), &json!("{\"city\":\"Paris\"}"))
    );
    assert_eq!(answer["status"], "completed");
    for (body, param) in [
        (json!({}), "input"),
        (json!({ "input": 5 }), "input"),
        (json!({ "input": [{ "type": "computer_call" }] }), "input[0].type"),
        (json!({ "input": "a", "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "input": "a", "text": { "format": { "type": "json_schema" } } }), "text.format.schema"),
    ] {
        assert_eq!(DEMO.bad(path, &body, 400)["param"], param, "{body}");
    }
}

#[test]
fn messages_answer_as_chats_do() {
    let path = "/v1/messages";
    let body =
        json!({ "model": "demo", "max_tokens": 20, "messages": [{ "role": "user", "content": QUESTION }] });
    let answer = DEMO.good(path, &body);
    assert_eq!(answer["content"], json!([{ "type": "text", "text": chat(20) }]));
    assert_eq!((&answer["type"], &answer["stop_reason"]), (&json!("message"), &json!("max_tokens")));
    let used = answer["usage"]["input_tokens"].as_u64().unwrap()
        + answer["usage"]["cache_read_input_tokens"].as_u64().unwrap();
    let counted = DEMO.good("/v1/messages/count_tokens", &body);
    assert_eq!(counted["input_tokens"], used);
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let events = events(&DEMO.post(path, &streamed));
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..2], ["message_start", "content_block_start"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let deltas = events.iter().filter(|(name, _)| name == "content_block_delta");
    assert_eq!(deltas.map(|(_, data)| data["delta"]["text"].as_str().unwrap()).collect::<String>(), chat(20));
    let mut cut = body.clone();
    cut["stop_sequences"] = json!(["busy", "clever"]);
    let cut = DEMO.good(path, &cut);
    assert_eq!((&cut["stop_reason"], &cut["stop_sequence"]), (&json!("stop_sequence"), &json!("clever")));
    let mut calls = body.clone();
    calls["tools"] = json!([{ "name": "weather", "description": "x", "input_schema": { "type": "object", "properties": { "city": { "enum": ["Paris"] } }, "required": ["city"], "additionalProperties": false } }, { "type": "bash_20250124", "name": "bash" }]);
    calls["tool_choice"] = json!({ "type": "tool", "name": "weather" });
    calls["max_tokens"] = json!(100);
    calls["system"] =
        json!([{ "type": "text", "text": "Be short.", "cache_control": { "type": "ephemeral" } }]);
    calls["messages"] = json!([
        { "role": "user", "content": "Is it warm?" },
        { "role": "assistant", "content": [{ "type": "thinking", "thinking": "Hm.", "signature": "" }, { "type": "tool_use", "id": "c1", "name": "weather", "input": { "city": "Rome" } }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "c1", "content": [{ "type": "text", "text": "warm" }] }, { "type": "text", "text": "And in Paris?" }] },
    ]);
    let answer = DEMO.good(path, &calls);
    assert_eq!(answer["content"][0]["input"], json!({ "city": "Paris" }));
    assert_eq!(answer["stop_reason"], "tool_use");
    let refused = DEMO.post(path, &json!({ "messages": [] }));
    assert_eq!((refused.status, &refused.json()["type"]), (400, &json!("error")));
    assert_eq!(refused.json()["error"]["type"], "invalid_request_error");
}
