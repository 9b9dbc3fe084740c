//! Responses that the server keeps, and that later requests continue.

use serde_json::{Value, json};

use crate::client::*;

const PATH: &str = "/v1/responses";

fn ask(more: Value) -> Value {
    let mut body = json!({ "input": "Tell me a story.", "max_output_tokens": 8, "cache_prompt": false });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The last event of a streamed response contains the response.
fn streamed(body: &Value) -> Value {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let events = DEMO.post(PATH, &body).body;
    let mut data = events.lines().filter_map(|line| line.strip_prefix("data: "));
    let last: Value = serde_json::from_str(data.next_back().unwrap()).unwrap();
    last["response"].clone()
}

#[test]
fn a_response_continues_an_earlier_one() {
    let text = |response: &Value| response["output"][0]["content"][0]["text"].as_str().unwrap().to_owned();
    let next = "Who was in it?";
    for first in [DEMO.good(PATH, &ask(json!({}))), streamed(&ask(json!({})))] {
        assert_eq!(
            (first["store"].clone(), first["previous_response_id"].clone()),
            (json!(true), json!(null))
        );
        let id = first["id"].clone();
        let conversation = json!([
            { "role": "user", "content": "Tell me a story." },
            { "role": "assistant", "content": text(&first) },
            { "role": "user", "content": next },
        ]);
        let whole = DEMO.good(PATH, &ask(json!({ "input": conversation })));
        let continued = ask(json!({ "input": next, "previous_response_id": id }));
        let second = DEMO.good(PATH, &continued);
        assert_eq!(text(&second), text(&whole));
        assert_eq!(second["usage"]["input_tokens"], whole["usage"]["input_tokens"]);
        assert_eq!(second["previous_response_id"], id);
        assert_eq!(text(&streamed(&continued)), text(&whole));
        // A client can also refer to the items of the conversation.
        let item = &first["output"][0]["id"];
        for reference in [json!({ "type": "item_reference", "id": item }), json!({ "id": item })] {
            let referred = json!([
                { "role": "user", "content": "Tell me a story." }, reference, { "role": "user", "content": next },
            ]);
            assert_eq!(text(&DEMO.good(PATH, &ask(json!({ "input": referred })))), text(&whole));
        }
        let many = vec![json!({ "type": "item_reference", "id": item }); 257];
        assert_eq!(DEMO.bad(PATH, &ask(json!({ "input": many })), 400)["param"], "input[256]");
        // The third response knows the first two.
        let third = ask(json!({ "input": "And then?", "previous_response_id": second["id"] }));
        assert!(
            DEMO.good(PATH, &third)["usage"]["input_tokens"].as_u64()
                > second["usage"]["input_tokens"].as_u64()
        );
    }
}

#[test]
fn a_stored_response_is_read_and_deleted() {
    let first = DEMO.good(PATH, &ask(json!({ "metadata": { "a": "b" } })));
    let id = first["id"].as_str().unwrap();
    let path = format!("{PATH}/{id}");
    assert_eq!(DEMO.get(&path).json(), first);
    let streamed = DEMO.get(&format!("{path}?stream=true"));
    assert_eq!((streamed.status, streamed.error()["param"].clone()), (400, json!("stream")));
    let deleted = DEMO.ask(&format!("DELETE {path} HTTP/1.1"), b"");
    assert_eq!(deleted.json(), json!({ "id": id, "object": "response", "deleted": true }));
    for gone in [DEMO.get(&path), DEMO.ask(&format!("DELETE {path} HTTP/1.1"), b"")] {
        assert_eq!((gone.status, gone.error()["code"].clone()), (404, json!("response_not_found")));
    }
    let unkept = DEMO.good(PATH, &ask(json!({ "store": false })));
    assert_eq!(unkept["store"], false);
    for (more, param) in [
        (json!({ "previous_response_id": id }), "previous_response_id"),
        (json!({ "previous_response_id": unkept["id"] }), "previous_response_id"),
        (json!({ "input": [{ "type": "item_reference", "id": first["output"][0]["id"] }] }), "input[0].id"),
    ] {
        assert_eq!(DEMO.bad(PATH, &ask(more), 400)["param"], param);
    }
}
