//! Adapters that requests choose by their names.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;

use serde_json::{Value, json};

use crate::client::*;
use crate::support::*;

const PATH: &str = "/v1/completions";
const LOAD: &str = "/v1/load_lora_adapter";
const UNLOAD: &str = "/v1/unload_lora_adapter";

/// Writes an adapter of the demo model as PEFT does. Its numbers depend on `seed`.
fn write_adapter(folder: &Path, seed: u32, rank: usize, dora: bool) {
    let config = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank,
        "target_modules": ["q_proj", "down_proj"], "use_dora": dora,
    });
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
    let (mut header, mut data, mut state) = (serde_json::Map::new(), Vec::<u8>::new(), seed);
    let mut add = |name: String, shape: &[usize], scale: f32| {
        let start = data.len();
        for _ in 0..shape.iter().product::<usize>() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            data.extend((scale * ((state >> 8) as f32 / (1 << 23) as f32 - 1.0)).to_le_bytes());
        }
        header.insert(name, json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] }));
    };
    for layer in 0..3 {
        for (module, inputs, outputs) in [("self_attn.q_proj", 144, 192), ("mlp.down_proj", 384, 144)] {
            let before = format!("base_model.model.model.layers.{layer}.{module}");
            add(format!("{before}.lora_A.weight"), &[rank, inputs], 0.2);
            add(format!("{before}.lora_B.weight"), &[outputs, rank], 0.2);
            if dora {
                add(format!("{before}.lora_magnitude_vector"), &[outputs], 1.0);
            }
        }
    }
    let header = Value::Object(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    fs::write(folder.join("adapter_model.safetensors"), [&length, header.as_bytes(), &data].concat())
        .unwrap();
}

fn ask(model: &str) -> Value {
    json!({ "model": model, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "ignore_eos": true })
}

fn answer(serving: &Serving, model: &str) -> String {
    let answer = serving.good(PATH, &ask(model));
    assert_eq!(answer["model"], model);
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

fn names(serving: &Serving) -> Vec<String> {
    let models = serving.get("/v1/models").json();
    models["data"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn requests_choose_adapters_by_name() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    for (name, seed, rank) in [("a", 1, 4), ("b", 2, 16), ("c", 3, 8), ("wide", 4, 40)] {
        write_adapter(&path(name), seed, rank, false);
    }
    let (a, b) = (format!("a={}", text(&path("a"))), format!("b={}", text(&path("b"))));
    let model = format!("demo={}", text(&demo()));
    let serving = Serving::of(&[&model, "--lora-adapter", &a, "--lora-adapter", &b]);
    assert_eq!(names(&serving), ["demo", "a", "b"]);
    let described = serving.get("/v1/models/a").json();
    assert_eq!((&described["parent"], &described["root"]), (&json!("demo"), &json!(path("a"))));
    // The base is as without adapters, also after the others have computed the same prompt.
    let base = DEMO.good(PATH, &ask("demo"))["choices"][0]["text"].clone();
    let [of_a, of_b] = ["a", "b"].map(|name| answer(&serving, name));
    assert!(of_a != of_b && base != of_a && base != of_b);
    for _ in 0..2 {
        assert_eq!(
            (answer(&serving, "demo").into(), answer(&serving, "a"), answer(&serving, "b")),
            (base.clone(), of_a.clone(), of_b.clone())
        );
    }
    together(&serving, &[("a", &of_a), ("demo", base.as_str().unwrap()), ("b", &of_b), ("a", &of_a)]);

    let load = |name: &str, path: &Path| json!({ "lora_name": name, "lora_path": path });
    let full = serving.bad(LOAD, &load("c", &path("c")), 400);
    assert!(full["message"].as_str().unwrap().contains("room for 2 adapters"), "{full}");
    let unknown = serving.bad(PATH, &ask("c"), 404);
    assert_eq!(unknown["message"], "the server has no model `c`, expected `demo` or `a` or `b`");
    assert_eq!(unknown["code"], "model_not_found");
    assert_eq!(serving.bad(UNLOAD, &json!({ "lora_name": "c" }), 404)["code"], "model_not_found");
    serving.bad(LOAD, &load("demo", &path("c")), 400);
    // A running answer keeps its adapter, and its place is not free before.
    let mut running = begin(&serving, "b");
    let removed = serving.post(UNLOAD, &json!({ "lora_name": "b" }));
    assert_eq!((removed.status, &*removed.body), (200, "Success: LoRA adapter 'b' removed successfully."));
    assert_eq!(serving.bad(PATH, &ask("b"), 404)["code"], "model_not_found");
    serving.bad(LOAD, &load("c", &path("c")), 400);
    let mut rest = String::new();
    running.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("[DONE]"), "{rest}");
    wait_until("the place", || serving.post(LOAD, &load("c", &path("c"))).status == 200);
    assert_eq!(names(&serving), ["demo", "a", "c"]);
    let of_c = answer(&serving, "c");
    assert!(![&of_a, &of_b].contains(&&of_c) && base != of_c);
    assert_eq!((answer(&serving, "demo").into(), answer(&serving, "a")), (base.clone(), of_a.clone()));
    // The same name with another file.
    serving.post(UNLOAD, &json!({ "lora_name": "c" }));
    assert_eq!(serving.post(LOAD, &load("c", &path("b"))).status, 200);
    assert_eq!(answer(&serving, "c"), of_b);
    serving.post(UNLOAD, &json!({ "lora_name": "c" }));
    let wide = serving.bad(LOAD, &load("wide", &path("wide")), 400);
    assert!(wide["message"].as_str().unwrap().contains("is 40, expected at most 16"), "{wide}");
    // The model is loaded again with the adapters that it had.
    serving.good("/models/unload", &json!({ "model": "demo" }));
    assert_eq!(answer(&serving, "a"), of_a);
}

/// Asks all at the same time.
fn together(serving: &Serving, expected: &[(&str, &str)]) {
    std::thread::scope(|scope| {
        for &(name, text) in expected {
            scope.spawn(move || assert_eq!(answer(serving, name), text, "{name}"));
        }
    });
}

/// Starts an answer of many tokens.
fn begin(serving: &Serving, model: &str) -> std::net::TcpStream {
    let body =
        json!({ "model": model, "prompt": "Once", "max_tokens": 300, "ignore_eos": true, "stream": true });
    let (body, mut stream) = (body.to_string(), serving.connect());
    let head = "HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json";
    write!(stream, "POST {PATH} {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    stream.read_exact(&mut [0; 40]).unwrap();
    stream
}

#[test]
fn adapters_that_requests_cannot_choose_are_refused() {
    let folder = folder();
    write_adapter(folder.path(), 1, 4, true);
    let (model, base) = (text(folder.path()), demo());
    let base = text(&base);
    let dora = format!("dora={model}");
    let words = ["TW0214", "lora_magnitude_vector` sets the lengths of rows (DoRA)", "`--lora PATH` adds"];
    refused(&mut tracewright(&["serve", base, "--lora-adapter", &dora]), 1, &words);
    let without = ["expected a name, `=`, and the path"];
    refused(&mut tracewright(&["serve", base, "--lora-adapter", model]), 2, &without);
    write_adapter(folder.path(), 1, 4, false);
    let twice = ["serve", base, "--lora-adapter", &dora, "--lora-adapter", &dora];
    refused(&mut tracewright(&twice), 1, &["`dora`"]);
    let many =
        ["serve", base, "--lora-adapter", &dora, "--lora-adapter", &format!("b={model}"), "--max-loras", "1"];
    refused(&mut tracewright(&many), 1, &["room for 1 adapters", "`--max-loras N`"]);
    // Nothing is loaded into a server without adapters.
    let body = json!({ "lora_name": "a", "lora_path": folder.path() });
    let message = DEMO.bad(LOAD, &body, 400)["message"].clone();
    assert!(message.as_str().unwrap().contains("without room for adapters"), "{message}");
}
