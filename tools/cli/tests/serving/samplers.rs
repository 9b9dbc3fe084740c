//! The numbers of the sampler, which are fields of requests.

use serde_json::{Value, json};
use tracewright::generate::Sampling;

use crate::client::*;
use crate::support::*;

const PATH: &str = "/v1/completions";

fn ask(more: &Value) -> Value {
    let mut body = json!({
        "prompt": "Once upon a time", "max_tokens": 30, "temperature": 1.2, "seed": 3, "ignore_eos": true,
        "cache_prompt": false,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn said(more: &Value) -> Value {
    DEMO.good(PATH, &ask(more))["choices"][0]["text"].clone()
}

#[test]
fn a_field_of_a_request_does_what_its_flag_does() {
    let plain = said(&json!({}));
    for (fields, flags) in [
        (json!({ "top_a": 0.4 }), "--top-a 0.4"),
        (json!({ "top_n_sigma": 0.6 }), "--top-nsigma 0.6"),
        (json!({ "xtc_probability": 1, "xtc_threshold": 0.05 }), "--xtc-probability 1 --xtc-threshold 0.05"),
        (json!({ "mirostat": 1, "mirostat_tau": 1.5 }), "--mirostat 1 --mirostat-ent 1.5"),
        (
            json!({ "mirostat": 2, "mirostat_tau": 1.5, "mirostat_eta": 0.3 }),
            "--mirostat 2 --mirostat-ent 1.5 --mirostat-lr 0.3",
        ),
        (
            json!({
                "dry_multiplier": 9, "dry_base": 3, "dry_allowed_length": 1, "dry_penalty_last_n": -1,
                "dry_sequence_breakers": [], "temperature": 0,
            }),
            "--dry-multiplier 9 --dry-base 3 --dry-allowed-length 1 --dry-penalty-last-n -1 --dry-sequence-breaker none --temp 0",
        ),
        (
            json!({ "repeat_last_n": -1, "repetition_penalty": 1.8, "frequency_penalty": 0.5, "presence_penalty": 0.7 }),
            "--repeat-last-n -1 --repeat-penalty 1.8 --frequency-penalty 0.5 --presence-penalty 0.7",
        ),
        (
            json!({ "samplers": ["temperature", "top_k"], "top_k": 2, "top_p": 0.1, "seed": 4 }),
            "--samplers temperature;top_k --top-k 2 --top-p 0.1 --seed 4",
        ),
        (
            json!({ "top_h": 0.4, "epsilon_cutoff": 0.05, "eta_cutoff": 0.1, "typical_p": 0.8 }),
            "--top-h 0.4 --epsilon-cutoff 0.05 --eta-cutoff 0.1 --typical 0.8",
        ),
    ] {
        let mut command =
            tracewright(&["generate", text(&demo()), "-p", "Once upon a time", "-n", "30", "--json"]);
        command.args(SIZES).arg("--ignore-eos");
        let usual = ["--temp 1.2", "--seed 3"];
        let usual = usual.iter().filter(|one| !flags.contains(one.split(' ').next().unwrap()));
        command.args(usual.flat_map(|one| one.split(' '))).args(flags.split(' '));
        let alone: Value = serde_json::from_str(&succeed(&mut command).out).unwrap();
        let found = said(&fields);
        assert_eq!(found, alone["text"], "{fields}");
        assert_ne!(found, plain, "{fields}");
    }
}

#[test]
fn every_number_of_the_sampler_is_a_checked_and_described_field() {
    let document = DEMO.get("/openapi.json").json();
    let parts =
        &document["paths"][PATH]["post"]["requestBody"]["content"]["application/json"]["schema"]["allOf"];
    let described =
        |name: &str| parts.as_array().unwrap().iter().find_map(|part| part["properties"].get(name));
    let mut count = 0;
    for setting in Sampling::settings() {
        for name in [&[setting.name], setting.aliases].concat() {
            let field = described(name).unwrap_or_else(|| panic!("no field {name}"));
            assert_eq!(field["description"], setting.help);
            let error = DEMO.bad(PATH, &ask(&json!({ name: "much" })), 400);
            assert_eq!(error["param"], name);
            let expected = if setting.range.is_whole { "a whole number" } else { "a number" };
            let expected = format!("`{name}` is `\"much\"`, expected {expected}");
            assert!(error["message"].as_str().unwrap().starts_with(&expected), "{error}");
            let beyond = if setting.range.is_whole { json!(-2) } else { json!(1e300) };
            let error = DEMO.bad(PATH, &ask(&json!({ name: beyond })), 400);
            assert!(error["param"] == name || error["param"] == setting.name, "{error}");
            assert!(error["message"].as_str().unwrap().ends_with(setting.range.expected), "{error}");
            count += 1;
        }
    }
    assert!(count > 20, "{count}");
    let error = DEMO.bad(PATH, &ask(&json!({ "samplers": ["top_k", "best"] })), 400);
    assert_eq!(error["param"], "samplers[1]");
}
