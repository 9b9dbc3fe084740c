//! Models that a file lists, and a limit on the memory of all models.

use std::fs;
use std::io::{Read as _, Write as _};

use serde_json::{Value, json};

use crate::client::*;
use crate::support::*;

const PATH: &str = "/v1/completions";

fn table(name: &str, more: &str) -> String {
    format!("[[model]]\npath = {}\nname = \"{name}\"\n{more}\n", json!(text(&demo())))
}

fn names(serving: &Serving) -> Vec<String> {
    let models = serving.get("/v1/models").json();
    models["data"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

fn loaded(serving: &Serving) -> Vec<String> {
    let models = serving.get("/v1/models").json();
    let is_loaded = |one: &&Value| one["status"]["value"] == "loaded";
    let loaded = models["data"].as_array().unwrap().iter().filter(is_loaded);
    loaded.map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

fn ask(model: &str) -> Value {
    json!({ "model": model, "prompt": "Once", "max_tokens": 4, "temperature": 0, "cache_prompt": false })
}

/// Starts an answer of many tokens.
fn begin(serving: &Serving, model: &str) -> std::net::TcpStream {
    let body =
        json!({ "model": model, "prompt": "Once", "max_tokens": 400, "ignore_eos": true, "stream": true });
    let (body, mut stream) = (body.to_string(), serving.connect());
    write!(
        stream,
        "POST {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    stream.read_exact(&mut [0; 40]).unwrap();
    stream
}

#[cfg(unix)]
#[test]
fn a_file_lists_models_and_is_read_again() {
    let folder = folder();
    let file = folder.path().join("models.toml");
    fs::write(&file, table("a", "aliases = [\"gpt-4o\"]") + &table("b", "keep-alive = 600\nslots = 4"))
        .unwrap();
    let serving = Serving::of(&["--config", text(&file)]);
    assert_eq!(names(&serving), ["a", "b"]);
    let expected = serving.good(PATH, &ask("a"))["choices"].clone();
    assert_eq!(serving.good(PATH, &ask("gpt-4o"))["choices"], expected);
    assert_eq!(serving.good(PATH, &ask("b"))["choices"], expected);
    let mut running = begin(&serving, "a");
    // `a` goes, `b` stays as it is, and `c` comes.
    fs::write(&file, table("b", "slots = 4\nkeep-alive = 600") + &table("c", "")).unwrap();
    serving.signal("-HUP");
    wait_until("the new models", || names(&serving) == ["b", "c"]);
    assert_eq!(loaded(&serving), ["b"]);
    assert_eq!(serving.bad(PATH, &ask("a"), 404)["code"], "model_not_found");
    assert_eq!(serving.good(PATH, &ask("c"))["choices"], expected);
    let mut rest = String::new();
    running.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"length\"") && rest.contains("[DONE]"), "{rest}");
    // A mistake changes nothing, and is in the log.
    fs::write(&file, table("d", "contxt = 5")).unwrap();
    serving.signal("-HUP");
    wait_until("the reason", || serving.err.lock().unwrap().contains("has the key `contxt`"));
    assert_eq!(names(&serving), ["b", "c"]);
    assert_eq!(serving.good(PATH, &ask("c"))["choices"], expected);
    serving.signal("-TERM");
    assert_eq!(serving.end(), Some(0));
}

#[test]
fn a_mistake_in_a_file_is_named_with_its_line() {
    let folder = folder();
    let file = folder.path().join("models.toml");
    for (content, words) in [
        (table("a", "contxt = 5"), vec!["line 4 of", "the key `contxt`", "a flag of a model"]),
        (table("a", "port = 5"), vec!["line 4 of", "the key `port`"]),
        (table("a", "context = \"long\""), vec!["line 4 of", "`context`", "invalid value 'long'"]),
        (table("a", "\nslots = 0"), vec!["line 5 of", "`slots`"]),
        (table("a", "aliases = \"b\""), vec!["line 4 of", "`aliases`", "a list of texts"]),
        (table("a", "context = 5\ncontext = 6"), vec!["line 5 of", "TOML"]),
        ("\n[[model]]\nname = \"a\"\n".to_owned(), vec!["line 2 of", "no `path`"]),
        ("[model]\npath = \"a\"\n".to_owned(), vec!["line 1 of", "`[[model]]`"]),
        ("host = \"a\"\n".to_owned(), vec!["line 1 of", "the key `host`"]),
        ("x = [\n".to_owned(), vec!["is not TOML"]),
        ("# none\n".to_owned(), vec!["contains no model"]),
    ] {
        fs::write(&file, &content).unwrap();
        let words = [&["TW1204"], &words[..]].concat();
        refused(&mut tracewright(&["serve", "--port", "0", "--config", text(&file)]), 1, &words);
    }
    fs::write(&file, table("a", "aliases = [\"b\"]") + &table("b", "")).unwrap();
    refused(&mut tracewright(&["serve", "--port", "0", "--config", text(&file)]), 1, &["TW1203", "`b`"]);
    refused(&mut tracewright(&["serve", "x", "--config", text(&file)]), 2, &["cannot be used with"]);
}

/// Three models, of which two have room: the one that is idle for the longest time goes.
#[test]
fn a_limit_of_memory_unloads_idle_models() {
    let demo = demo();
    let mut plan = tracewright(&["plan", text(&demo), "--batch", "4", "--json"]);
    let plan: Value = serde_json::from_slice(&plan.args(SIZES).output().unwrap().stdout).unwrap();
    let bytes = plan["running_bytes"].as_u64().unwrap();
    let limit = (bytes * 5 / 2).to_string();
    let named = ["a", "b", "c"].map(|name| format!("{name}={}", text(&demo)));
    let serving = Serving::of(&[&named[0], &named[1], &named[2], "--memory-limit", &limit]);
    let expected = serving.good(PATH, &ask("a"))["choices"].clone();
    for (name, after) in [("b", ["a", "b"]), ("c", ["b", "c"]), ("a", ["a", "c"]), ("b", ["a", "b"])] {
        assert_eq!(serving.good(PATH, &ask(name))["choices"], expected);
        assert_eq!(loaded(&serving), after);
    }
    // A model that answers is not unloaded: the request waits for the end of an answer.
    let mut running = [begin(&serving, "a"), begin(&serving, "b")];
    assert_eq!(serving.good(PATH, &ask("c"))["choices"], expected);
    for stream in &mut running {
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("\"length\"") && rest.contains("[DONE]"), "{rest}");
    }
    let small = Serving::of(&[&named[0], "--memory-limit", "1MB"]);
    let error = small.bad(PATH, &ask("a"), 507);
    assert_eq!(error["code"], "insufficient_memory");
    assert!(error["message"].as_str().unwrap().contains("`a` needs"), "{error}");
    for bad in ["5 parsecs", "-1", "0", "1e99GB"] {
        refused(&mut tracewright(&["serve", "x", "--memory-limit", bad]), 2, &["a number of bytes"]);
    }
}
