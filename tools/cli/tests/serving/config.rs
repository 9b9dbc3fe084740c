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

fn defaults(serving: &Serving, model: &str) -> Value {
    serving.get(&format!("/props?model={model}")).json()["default_generation_settings"]["params"].clone()
}

/// Each number of the sampler is a key, under the name of its flag and of its field. A change of them keeps the model.
#[cfg(unix)]
#[test]
fn models_have_sampling_defaults_of_their_own() {
    let folder = folder();
    let file = folder.path().join("models.toml");
    // The most likely token alone remains, so the answer is the one of temperature 0.
    let sure = "temp = 1.5\ntop-k = 1\nmin_p = 0.25\nsamplers = [\"top_k\", \"temperature\"]";
    fs::write(&file, table("sure", sure) + &table("free", "top_p = 0.5")).unwrap();
    let serving = Serving::of(&["--config", text(&file), "--temp", "0.75"]);
    let unset = |model: &str| json!({ "model": model, "prompt": "Once", "max_tokens": 16 });
    let text_of = |body: &Value| serving.good(PATH, body)["choices"][0]["text"].clone();
    let mut greedy = unset("sure");
    greedy["temperature"] = json!(0);
    let expected = text_of(&greedy);
    assert_eq!([text_of(&unset("sure")), text_of(&unset("sure"))], [expected.clone(), expected.clone()]);
    let found: std::collections::BTreeSet<String> =
        (0..6).map(|_| text_of(&unset("free")).to_string()).collect();
    assert!(found.len() > 1, "{found:?}");
    let (sure, free) = (defaults(&serving, "sure"), defaults(&serving, "free"));
    assert_eq!(
        (&sure["temperature"], &sure["top_k"], &sure["min_p"]),
        (&json!(1.5), &json!(1.0), &json!(0.25))
    );
    assert_eq!((&free["temperature"], &free["top_p"]), (&json!(0.75), &json!(0.5)));
    // Other defaults are no reason to load a model again, even if their order in the file changes.
    fs::write(&file, table("free", "top_k = 1\ntemperature = 2") + &table("sure", "")).unwrap();
    serving.signal("-HUP");
    wait_until("the new defaults", || defaults(&serving, "free")["top_k"] == 1.0);
    assert_eq!(loaded(&serving), ["free", "sure"]);
    assert_eq!(text_of(&unset("free")), expected);
    assert_eq!(defaults(&serving, "sure")["temperature"], 0.75);
    let log = serving.err.lock().unwrap().clone();
    assert_eq!(log.matches("loading ").count(), 1, "{log}");
}

/// Every option of the sampler is a key, with each of its names.
#[test]
fn all_options_of_the_sampler_are_keys() {
    let folder = folder();
    let file = folder.path().join("models.toml");
    let names = defaults(&DEMO, "demo");
    let names = names.as_object().unwrap();
    assert!(names.len() > 20, "{names:?}");
    for name in names.keys() {
        fs::write(&file, table("a", &format!("{name} = \"x\""))).unwrap();
        let words = ["line 4 of", &format!("`{name}`"), "`\"x\"`, expected "];
        refused(&mut tracewright(&["serve", "--port", "0", "--config", text(&file)]), 1, &words);
    }
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
        (table("a", "top-p = 7"), vec!["line 4 of", "`top-p`", "`7`, expected a number from 0 to 1"]),
        (table("a", "temp = \"hot\""), vec!["line 4 of", "`temp`", "`\"hot\"`, expected a number from 0"]),
        (table("a", "top_k = 1.5"), vec!["line 4 of", "`top_k`", "`1.5`, expected a whole number"]),
        (table("a", "temp = 1\ntemperature = 0"), vec!["line 5 of", "`temperature`", "`temp` sets the same"]),
        (table("a", "samplers = [\"top_q\"]"), vec!["line 4 of", "`samplers`", "'top_q'", "top_k"]),
        (table("a", "suppress-tokens = []"), vec!["line 4 of", "`suppress-tokens`", "an empty list"]),
        (table("a", "top_q = 1"), vec!["line 4 of", "the key `top_q`", "an option of the sampler"]),
        (table("a", "seed = 1"), vec!["line 4 of", "the key `seed`"]),
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
