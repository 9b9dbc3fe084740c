//! Who may use the server, and who may read its answers.

use std::fs;

use serde_json::{Value, json};

use crate::client::*;
use crate::support::*;

#[test]
fn keys_give_access_and_are_in_no_log() {
    let folder = folder();
    let file = folder.path().join("keys.txt");
    fs::write(&file, "# keys\nsecret-one\n\n  secret-two\n").unwrap();
    let mut command = tracewright(&["serve", text(&demo()), "--port", "0", "--api-key-file", text(&file)]);
    command.args(SIZES).args(["--log", "trace"]);
    let serving = Serving::start(command);
    let with = |header: &str| serving.ask(&format!("GET /v1/models HTTP/1.1{header}"), b"");
    for good in [
        "\r\nAuthorization: Bearer secret-one",
        "\r\nauthorization: bearer secret-two",
        "\r\nx-api-key: secret-one",
    ] {
        assert_eq!(with(good).status, 200, "{good}");
    }
    for bad in [
        "",
        "\r\nAuthorization: Bearer secret",
        "\r\nAuthorization: Bearer secret-one2",
        "\r\nAuthorization: Basic secret-one",
        "\r\nx-api-key: ",
        "\r\nAuthorization: Bearer",
    ] {
        let response = with(bad);
        assert_eq!(response.status, 401, "{bad}");
        assert_eq!(response.error()["code"], "invalid_api_key");
        assert!(response.head.to_lowercase().contains("www-authenticate: bearer"));
    }
    assert_eq!(serving.get("/health").status, 200);
    assert_eq!(serving.get("/metrics").status, 401);
    stored_responses_belong_to_their_key(&serving);
    let log = serving.err.lock().unwrap().clone();
    assert!(log.contains("GET /v1/models 200") && !log.contains("secret-"), "{log}");
    for (content, words) in [("# none\n", "contains no API key"), ("one two\n", "line 1 of")] {
        fs::write(&file, content).unwrap();
        refused(
            &mut tracewright(&["serve", text(&demo()), "--api-key-file", text(&file)]),
            1,
            &["TW1202", words],
        );
    }
}

/// For another key, a response is as unknown as one that never was. Models belong to all keys.
fn stored_responses_belong_to_their_key(serving: &Serving) {
    const PATH: &str = "/v1/responses";
    let ask = |method: &str, path: &str, key: &str, body: &Value| {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json"
        );
        let body = if body.is_null() { String::new() } else { body.to_string() };
        serving.ask(&head, body.as_bytes())
    };
    let (ours, theirs) = ("secret-one", "secret-two");
    let first = ask("POST", PATH, ours, &json!({ "input": "Hello", "max_output_tokens": 2 })).json();
    let (id, item) = (first["id"].as_str().unwrap(), &first["output"][0]["id"]);
    let stored = format!("{PATH}/{id}");
    let unknown =
        |text: &str| text.replace(id, "ID").replace(item.as_str().unwrap(), "ITEM").replace("resp_x", "ID");
    for method in ["GET", "DELETE"] {
        let refused = ask(method, &stored, theirs, &Value::Null);
        assert_eq!((refused.status, refused.error()["code"].clone()), (404, json!("response_not_found")));
        let never = ask(method, &format!("{PATH}/resp_x"), theirs, &Value::Null);
        assert_eq!(unknown(&refused.body), unknown(&never.body));
    }
    let continued = |key: &str, more: &Value| {
        let mut body = json!({ "input": "And then?", "max_output_tokens": 2 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask("POST", PATH, key, &body)
    };
    let with_item = json!({ "input": [{ "type": "item_reference", "id": item }] });
    for (more, param) in
        [(json!({ "previous_response_id": id }), "previous_response_id"), (with_item, "input[0].id")]
    {
        let refused = continued(theirs, &more);
        assert_eq!((refused.status, refused.error()["param"].clone()), (400, json!(param)));
        assert_eq!(continued(ours, &more).status, 200, "{more}");
    }
    assert_eq!(ask("GET", &stored, ours, &Value::Null).json(), first);
    let models = |key: &str| ask("GET", "/v1/models", key, &Value::Null).json()["data"].clone();
    assert_eq!(models(ours), models(theirs));
    assert_eq!(ask("DELETE", &stored, ours, &Value::Null).status, 200);
    assert_eq!(ask("GET", &stored, ours, &Value::Null).status, 404);
}

/// Web pages of other origins get no answer, unless they are allowed.
#[test]
fn other_origins_read_nothing() {
    let port = DEMO.port;
    let with = |serving: &Serving, origin: &str| {
        serving.ask(&format!("GET /v1/models HTTP/1.1\r\nOrigin: {origin}"), b"")
    };
    let evil = with(&DEMO, "http://evil.example");
    assert_eq!((evil.status, evil.error()["code"].clone()), (403, json!("origin_not_allowed")));
    assert!(!evil.head.to_lowercase().contains("access-control"), "{}", evil.head);
    assert_eq!(with(&DEMO, &format!("http://127.0.0.1:{port}")).status, 200);
    // A page whose name suddenly leads to this machine.
    let mut stream = DEMO.connect();
    std::io::Write::write_all(
        &mut stream,
        b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
    )
    .unwrap();
    assert_eq!(read(stream).status, 403);
    // What a page may send without being asked is refused.
    let body = json!({ "messages": [{ "role": "user", "content": "Hi" }] }).to_string();
    let sent = DEMO.ask("POST /v1/chat/completions HTTP/1.1\r\nContent-Type: text/plain", body.as_bytes());
    assert_eq!(sent.status, 415);

    let serving = Serving::of(&[text(&demo()), "--allow-origin", "http://good.example"]);
    let good = with(&serving, "http://good.example");
    assert_eq!(good.status, 200);
    assert!(
        good.head.to_lowercase().contains("access-control-allow-origin: http://good.example"),
        "{}",
        good.head
    );
    let preflight = serving.ask("OPTIONS /v1/chat/completions HTTP/1.1\r\nOrigin: http://good.example\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,content-type", b"");
    assert_eq!(preflight.status, 200);
    assert!(preflight.head.to_lowercase().contains("access-control-allow-methods"), "{}", preflight.head);
    assert_eq!(with(&serving, "http://evil.example").status, 403);
}

#[test]
fn metrics_are_in_the_format_of_prometheus() {
    DEMO.good("/v1/completions", &json!({ "prompt": "Once", "max_tokens": 3 }));
    let text = DEMO.get("/metrics").body;
    let mut names = std::collections::BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert!(names.insert(rest.split(' ').next().unwrap()), "{line} comes twice");
        } else if !line.starts_with("# HELP ") {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let name = name.split('{').next().unwrap();
            let known = ["", "_bucket", "_sum", "_count"]
                .iter()
                .any(|end| name.strip_suffix(end).is_some_and(|name| names.contains(name)));
            assert!(known && value.parse::<f64>().is_ok(), "{line}");
        }
    }
    assert!(text.contains("tracewright_requests_total{path=\"/v1/completions\",status=\"200\"}"), "{text}");
}

#[test]
fn two_models_need_two_names() {
    let demo = demo();
    refused(
        tracewright(&["serve", text(&demo), text(&demo), "--port", "0"]).args(SIZES),
        1,
        &["TW1203", "the name `demo`"],
    );
    refused(&mut tracewright(&["serve", "=x"]), 2, &["a name in front of"]);
    refused(&mut tracewright(&["serve"]), 2, &["MODEL"]);
    let missing = Serving::of(&[text(&demo), "other=no/such/folder"]);
    let body: Value = json!({ "model": "other", "messages": [{ "role": "user", "content": "Hi" }] });
    let error = missing.bad("/v1/chat/completions", &body, 500);
    assert_eq!(error["code"], "model_not_loaded");
    // The other model still answers.
    missing.good("/v1/completions", &json!({ "prompt": "Once", "max_tokens": 1 }));
}

/// The document lists every path, and its schemas accept and refuse what the server does.
#[test]
fn the_openapi_document_describes_the_server() {
    let document = DEMO.get("/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 12, "{paths:?}");
    let mut compared = 0;
    for (path, operations) in paths {
        let (method, operation) = operations.as_object().unwrap().iter().next().unwrap();
        let at = path.replace("{name}", "demo");
        if path.ends_with("{id}") {
            assert_eq!((DEMO.get(&at).status, operations["delete"].is_object()), (404, true), "{path}");
            continue;
        }
        if method == "get" {
            assert_eq!(DEMO.get(&at).status, 200, "{path}");
            continue;
        }
        assert_eq!(DEMO.get(&at).status, 405, "{path}");
        let content = &operation["requestBody"]["content"];
        if content["multipart/form-data"].is_object() {
            assert_eq!(DEMO.post(path, &json!({})).status, 415, "{path}");
            continue;
        }
        let schema = &content["application/json"]["schema"];
        let validator = jsonschema::validator_for(schema).unwrap();
        for body in [
            json!({}),
            json!({ "messages": "x" }),
            json!({ "messages": [{ "role": "user", "content": "Hi" }], "temperature": "hot" }),
            json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 1 }),
            json!({ "prompt": "Hi", "max_tokens": 1 }),
            json!({ "input": "Hi", "max_output_tokens": 1 }),
            json!({ "content": 5 }),
            json!({ "tokens": [1] }),
        ] {
            let is_valid = validator.is_valid(&body);
            let response = DEMO.post(path, &body);
            // The server also checks what a schema does not: that a list has an item, or the kind of the model.
            assert!(is_valid || response.status == 400, "{path} {body}: {response:?}");
            compared += usize::from(!is_valid);
        }
    }
    assert!(compared > 20, "{compared}");
}

#[test]
fn the_page_is_in_the_program() {
    let page = DEMO.get("/");
    assert_eq!(page.status, 200);
    let head = page.head.to_lowercase();
    assert!(
        head.contains("content-type: text/html")
            && head.contains("content-security-policy: default-src 'none'"),
        "{head}"
    );
    let scripts = ["page.js", "chats.js", "markdown.js", "settings.js"].map(|path| (path, "text/javascript"));
    let named = page.body.clone() + &DEMO.get("/page.js").body;
    for (path, kind) in [("page.css", "text/css")].into_iter().chain(scripts) {
        assert!(named.contains(path));
        let file = DEMO.get(&format!("/{path}"));
        assert!(file.status == 200 && file.head.contains(kind), "{file:?}");
        // Nothing comes from the network, and no text becomes HTML.
        for word in ["http://", "https://", "innerHTML", "eval("] {
            assert!(!file.body.contains(word) && !page.body.contains(word), "{path}: {word}");
        }
    }
}
