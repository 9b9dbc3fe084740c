//! The most likely answers to schemas end: JSON has no whitespace that a small model could write without end.

use std::ops::ControlFlow;
use std::path::Path;

use serde_json::{Value, json};
use tracewright::export::IreeManifest;
use tracewright::generate::{
    Constrainer, Constraint, Finish, Network, Sampling, Session, TokenOptions, Tokenizer, stop_tokens,
};
use tracewright::runtime::{Device, Runtime};

use crate::support::*;

/// The sizes of the demo in these tests, which therefore share a module.
pub const SIZES: [&str; 6] = ["--dtype", "f32", "--context", "512", "--chunk", "1"];

pub struct Exported {
    network: Network,
    tokenizer: Tokenizer,
    stop_tokens: Vec<u32>,
}

impl Exported {
    pub fn open(export: &Path) -> Self {
        let manifest = IreeManifest::read(export).unwrap().unwrap();
        let runtime = Runtime::new(Device::LocalTask { workers: 0 }).unwrap();
        let (program, _) = tracewright::export::open(export, &manifest, &runtime).unwrap();
        let network = Network::new(&runtime, &program, &manifest.signatures(export).unwrap()).unwrap();
        let tokenizer = Tokenizer::load(export).unwrap().unwrap();
        Self { network, tokenizer, stop_tokens: stop_tokens(export).unwrap() }
    }

    pub fn constrainer(&self) -> Constrainer {
        Constrainer::new(&self.tokenizer, &self.stop_tokens).unwrap()
    }

    /// An answer of at most this many tokens, and how it ended.
    pub fn answer(
        &self,
        prompt: &str,
        most: usize,
        sampling: Sampling,
        follows: Constraint,
    ) -> (String, Finish) {
        let options = TokenOptions {
            max_tokens: most,
            sampling,
            stop_tokens: self.stop_tokens.clone(),
            constraint: Some(follows),
            ..TokenOptions::default()
        };
        let prompt = self.tokenizer.encode(prompt).unwrap();
        let go_on = |_| ControlFlow::Continue(());
        let generated = Session::new(&self.network).generate(&prompt, &options, go_on).unwrap();
        (self.tokenizer.decode(&generated.tokens).unwrap(), generated.finish)
    }
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

/// Schemas whose texts are bounded, or, of the recursive one, end where the model ends them.
fn schemas() -> Vec<Value> {
    let name = json!({"type": "string", "minLength": 1, "maxLength": 12});
    let age = json!({"type": "integer", "minimum": 0, "maximum": 120});
    vec![
        json!({"type": "boolean"}),
        json!({"type": "null"}),
        json!({"enum": ["red", "green", 3, null, [true]]}),
        json!({"const": {"a": [1, {"b": "c d"}], "e": {}}}),
        age.clone(),
        json!({"type": "number", "minimum": 0, "maximum": 2, "multipleOf": 0.25}),
        json!({"type": "string", "pattern": "^[A-Z][a-z]{1,6}( [A-Z][a-z]{1,6})?$"}),
        json!({"type": "string", "format": "date"}),
        json!({"type": "string", "format": "uuid"}),
        json!({"enum": ["a \"quoted\" word", "line\nbreak", "é 👍"]}),
        json!({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 5}),
        json!({"type": "array", "prefixItems": [name, age, {"type": "boolean"}], "items": false, "minItems": 3}),
        json!({"type": "array", "items": {"type": "array", "items": age, "maxItems": 3, "minItems": 1}, "minItems": 2, "maxItems": 3}),
        object(json!({}), &[]),
        object(json!({"name": name, "age": age, "brave": {"type": "boolean"}}), &["name", "age", "brave"]),
        object(json!({"name": name, "nickname": name, "age": age}), &["name"]),
        object(json!({"a": object(json!({"b": object(json!({"c": name}), &["c"])}), &["b"])}), &["a"]),
        object(
            json!({"pet": {"anyOf": [name, object(json!({"kind": {"enum": ["fox", "owl"]}}), &["kind"]), {"type": "null"}]}}),
            &["pet"],
        ),
        object(
            json!({"friends": {"type": "array", "items": object(json!({"name": name, "age": age}), &["name", "age"]), "minItems": 1, "maxItems": 2}}),
            &["friends"],
        ),
        json!({
            "$ref": "#/$defs/node",
            "$defs": {"node": object(json!({"value": age, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}}), &["value", "next"])},
        }),
        json!({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 19}]}),
    ]
}

/// Whether there is whitespace between the tokens of JSON, which need not be whole.
fn is_spaced(text: &str) -> bool {
    let (mut outside, mut inside, mut escaped) = (String::new(), false, false);
    for character in text.chars() {
        match character {
            '"' if !escaped => inside = !inside,
            _ if !inside => outside.push(character),
            _ => {}
        }
        escaped = inside && character == '\\' && !escaped;
    }
    outside.contains(char::is_whitespace)
}

#[test]
fn twenty_schemas_end_with_valid_json() {
    let out = folder();
    let export = out.path().join("export");
    succeed(tracewright(&["export", text(&demo()), "-o", text(&export)]).args(SIZES));
    let exported = Exported::open(&export);
    let constrainer = exported.constrainer();
    let schemas = schemas();
    assert!(schemas.len() >= 20);
    for schema in &schemas {
        let words = schema.to_string();
        let judge = jsonschema::validator_for(schema).unwrap();
        for prompt in ["Once upon a time", "A fox.", "{"] {
            for grammar in [false, true] {
                let follows = if grammar {
                    constrainer.grammar(&format!("start: %json {words}"))
                } else {
                    constrainer.json_schema(&words)
                };
                let (said, finish) = exported.answer(prompt, 100, Sampling::default(), follows.unwrap());
                assert_eq!(finish, Finish::Stop, "{words}: {said}");
                let value: Value = serde_json::from_str(&said).unwrap();
                assert!(judge.is_valid(&value), "{words}: {said}");
                assert!(!is_spaced(&said), "{words}: {said}");
            }
        }
    }
}

/// The flag and the options inside the schema change whitespace: of the answer to a schema, to a grammar with one, and in a chat.
#[test]
fn whitespace_is_allowed_where_it_is_asked_for() {
    let folder = folder();
    let plain = object(json!({"brave": {"type": "boolean"}, "legs": {"enum": [2, 4]}}), &["brave", "legs"]);
    let with = |options: Value| {
        let mut schema = plain.clone();
        schema["x-guidance"] = options;
        schema
    };
    let flag = "--whitespace-flexible";
    let model = demo();
    for (flags, schema, begins) in [
        (&[][..], plain.clone(), "{\"brave\":"),
        (&[], with(json!({"lenient": true})), "{\"brave\":"),
        (&[], with(json!({"key_separator": ": "})), "{\"brave\": "),
        (&[flag], with(json!({"whitespace_flexible": false})), "{\"brave\":"),
        (&[], with(json!({"whitespace_pattern": " "})), "{ \"brave\" : "),
        (&[], with(json!({"whitespace_flexible": true})), "{\n"),
        (&[flag], plain.clone(), "{\n"),
    ] {
        let grammar = format!("start: %json {schema}");
        for (kind, words) in [("--json-schema", schema.to_string()), ("--grammar", grammar)] {
            let file = folder.path().join("follow");
            std::fs::write(&file, words).unwrap();
            let mut command = tracewright(&["generate", text(&model), "-p", "A fox.", "--temp", "0"]);
            command.args(["-n", "100", "--json", kind, text(&file)]).args(flags).args(SIZES);
            let answer: Value = serde_json::from_str(&succeed(&mut command).out).unwrap();
            let said = answer["text"].as_str().unwrap();
            assert!(said.starts_with(begins), "{kind} {flags:?} {schema}: {answer}");
            assert_eq!(
                is_spaced(said),
                begins.contains(char::is_whitespace),
                "{kind} {flags:?} {schema}: {answer}"
            );
        }
    }
    let nothing = tracewright(&["generate", text(&model), "-p", "A fox.", flag]);
    refused(&mut { nothing }, 2, &["--json-schema", "--grammar"]);
}
