//! A schema or a grammar ends at most the request that it belongs to.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tracewright::errors::WithCauses;
use tracewright::generate::{
    Constrainer, ConstraintProcesses, ConstraintProgram, GenerateError, Tokenizer, stop_tokens,
};

use crate::client::*;
use crate::support::*;

const PATH: &str = "/v1/chat/completions";

fn ask(more: Value) -> Value {
    let mut body =
        json!({ "messages": [{ "role": "user", "content": "Tell me a story." }], "cache_prompt": false });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn following(schema: &Value) -> Value {
    ask(json!({
        "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": schema } },
        "max_tokens": 24,
    }))
}

fn content(answer: &Value) -> String {
    answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

/// A server whose schemas can ask for faults.
fn faulty() -> Serving {
    let mut command = tracewright(&["serve", "--port", "0", text(&demo())]);
    command.args(SIZES).env("TRACEWRIGHT_CRASHES", "true");
    Serving::start(command)
}

/// Lets other clients ask while `work` runs: one without a schema, and one with a schema. Each of their answers must
/// be the answer that they get alone.
#[track_caller]
fn beside_others(serving: &Serving, work: impl FnOnce()) {
    let free = ask(json!({ "max_tokens": 40, "ignore_eos": true }));
    let schema = json!({ "type": "object", "properties": { "animal": { "enum": ["owl", "fox"] }, "text": { "type": "string", "maxLength": 9 } }, "required": ["animal", "text"] });
    let others = [free, following(&schema)];
    let alone = others.each_ref().map(|body| content(&serving.good(PATH, body)));
    let (is_over, asked) = (AtomicBool::new(false), [AtomicUsize::new(0), AtomicUsize::new(0)]);
    std::thread::scope(|scope| {
        for ((body, alone), asked) in others.iter().zip(&alone).zip(&asked) {
            let is_over = &is_over;
            scope.spawn(move || {
                loop {
                    assert_eq!(content(&serving.good(PATH, body)), *alone);
                    asked.fetch_add(1, Ordering::Relaxed);
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        is_over.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert!(asked.iter().all(|asked| asked.load(Ordering::Relaxed) > 0), "{asked:?}");
}

#[test]
fn the_smallest_integer_is_refused_or_written() {
    let least = json!(i64::MIN);
    for schema in [
        json!({ "const": least }),
        json!({ "enum": [1, least] }),
        json!({ "type": "array", "items": { "const": { "a": [least] } } }),
        json!({ "type": "integer", "maximum": least }),
        json!({ "type": "integer", "exclusiveMaximum": -9223372036854775807_i64 }),
        json!({ "type": "integer", "minimum": -1e300 }),
    ] {
        let response = DEMO.post(PATH, &following(&schema));
        match response.status {
            200 => drop(serde_json::from_str::<Value>(&content(&response.json())).unwrap()),
            status => {
                let error = response.error();
                assert_eq!((status, &error["code"]), (400, &json!("invalid_schema")), "{schema}: {error}");
                let message = error["message"].as_str().unwrap();
                assert!(message.contains("follow the schema: `") && !message.contains("panic"), "{message}");
            }
        }
    }
    DEMO.good(PATH, &ask(json!({ "max_tokens": 2 })));
}

#[test]
fn a_fault_ends_one_request_only() {
    let serving = faulty();
    beside_others(&serving, || {
        for fault in ["stack", "abort", "panic", "memory", "loop"] {
            for (time, at) in [("prepare", ""), ("compile", ""), ("step", "step 0: ")] {
                let schema =
                    json!({ "$comment": format!("crash {fault} {time}"), "type": "string", "minLength": 9 });
                let asked = Instant::now();
                let error = serving.bad(PATH, &following(&schema), 400);
                assert_eq!(error["code"], "invalid_schema", "{error}");
                let words = match fault {
                    "panic" => "a test asked for a panic",
                    "loop" => "takes more than",
                    _ => "the process that follows the schema or the grammar ended",
                };
                let message = error["message"].as_str().unwrap();
                assert!(message.contains(words) && message.contains(at), "{fault} {time}: {message}");
                assert!(asked.elapsed() < Duration::from_secs(30), "{fault} {time}: {:?}", asked.elapsed());
            }
        }
    });
    serving.signal("-TERM");
    assert_eq!(serving.end(), Some(0));
}

/// The command line reads no schema itself, either.
#[test]
fn a_fault_is_an_error_of_the_command_line() {
    let folder = folder();
    let schema = json!({ "$comment": "crash stack prepare", "type": "string" });
    for (flag, content) in
        [("--json-schema", schema.to_string()), ("--grammar", format!("start: %json {schema}"))]
    {
        let path = folder.path().join("followed");
        fs::write(&path, content).unwrap();
        let mut command = bare(&["generate", text(&demo()), "-p", "x", flag, text(&path)]);
        let words = ["TW0818", "the process that follows the schema or the grammar ended"];
        refused(command.env("TRACEWRIGHT_CRASHES", "true"), 1, &words);
    }
}

/// A part of a schema that an answer can violate is in the log of the server.
#[test]
fn a_note_is_logged_for_the_schema_of_a_request() {
    let serving = Serving::of(&[text(&demo()), "--log", "warn"]);
    let schema = json!({ "oneOf": [{ "type": "number" }, { "type": "integer" }] });
    let mut body = following(&schema);
    body["n"] = json!(2);
    serving.good(PATH, &body);
    serving.good(PATH, &following(&json!({ "type": "integer" })));
    let note = "the schema of a request: `oneOf` at `/oneOf` is read as `anyOf`";
    let times = || serving.err.lock().unwrap().matches(note).count();
    wait_until("the server logs the note", || times() > 0);
    serving.signal("-TERM");
    assert_eq!(times(), 1);
}

/// Random schemas go to a server, and random grammars to a process like the server's. This runs for a short time,
/// or for the seconds in `TRACEWRIGHT_FUZZ_SECONDS`.
#[test]
fn random_schemas_end_no_server() {
    let seconds = std::env::var("TRACEWRIGHT_FUZZ_SECONDS").map_or(4, |text| text.parse().unwrap());
    let serving = Serving::of(&[text(&demo())]);
    let program = ConstraintProgram {
        program: env!("CARGO_BIN_EXE_tracewright").into(),
        arguments: vec!["constrain".into()],
        without: Vec::new(),
    };
    let tokenizer = Tokenizer::load(demo()).unwrap().unwrap();
    let processes = ConstraintProcesses::new(program, &tokenizer).unwrap();
    let constrainer = Constrainer::within(&processes, &stop_tokens(demo()).unwrap());
    let mut dice = Dice(seconds);
    let [mut followed, mut refused, mut limited, mut grammars] = [0; 4];
    beside_others(&serving, || {
        let end = Instant::now() + Duration::from_secs(seconds);
        // On a busy machine, up to a minute longer: until each kind came.
        let late = end + Duration::from_secs(60);
        while Instant::now() < if [followed, refused, grammars].contains(&0) { late } else { end } {
            let body = following(&json!("SCHEMA")).to_string();
            let body = body.replace("\"SCHEMA\"", &dice.varied("schema"));
            let response = serving
                .ask(&format!("POST {PATH} HTTP/1.1\r\nContent-Type: application/json"), body.as_bytes());
            match response.status {
                200 => followed += 1,
                400 if response.body.contains("takes more than")
                    || response.body.contains("grammar ended") =>
                {
                    limited += 1
                }
                400 => refused += 1,
                _ => panic!("{body}\n{response:?}"),
            }
            match constrainer.grammar(&dice.varied("grammar")) {
                Ok(_) => grammars += 1,
                Err(GenerateError::Grammar { .. } | GenerateError::ConstraintLimit { .. }) => {}
                Err(error) => panic!("{}", WithCauses(&error)),
            }
        }
    });
    eprintln!("schemas: {followed} followed, {refused} refused, {limited} over a limit; {grammars} grammars");
    assert!(followed > 0 && refused > 0 && grammars > 0);
    serving.signal("-TERM");
    assert_eq!(serving.end(), Some(0));
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }

    fn of<'a>(&mut self, texts: &'a [String]) -> &'a str {
        &texts[self.below(texts.len())]
    }

    /// A file of a fuzz target's corpus with up to five changes.
    fn varied(&mut self, target: &str) -> String {
        const PIECES: [&str; 24] = [
            "-9223372036854775808",
            "1e308",
            "-0.0",
            "18446744073709551616",
            "4294967296",
            "{}",
            "[]",
            "true",
            "null",
            "\"$ref\": \"#\"",
            "\"allOf\": [{\"$ref\": \"#\"}]",
            "\"minLength\": 100000",
            "\"maxItems\": 1000000",
            "\"pattern\": \"(a|b|ab)*c{1,999}\"",
            "\"multipleOf\": 1e-9",
            "\"format\": \"uuid\"",
            "start",
            "{0,99999}",
            "(",
            ")",
            "/(.*a){30}/",
            "|",
            "%json {\"$ref\": \"#\"}",
            "~1..50000",
        ];
        let folder = root().join("tests/fuzz/corpus").join(target);
        let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let files: Vec<String> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
        let mut text = self.of(&files).to_owned();
        for _ in 0..self.below(6) {
            // Words and marks, so that changes often keep the text valid.
            let is_edge = |&(at, c): &(usize, char)| at > 0 && !c.is_ascii_alphanumeric() && c != '_';
            let edges: Vec<usize> = text.char_indices().filter(is_edge).map(|(at, _)| at).collect();
            if edges.is_empty() {
                break;
            }
            let (a, b) = (edges[self.below(edges.len())], edges[self.below(edges.len())]);
            let (start, end) = (a.min(b), a.max(b).min(a.min(b) + 60));
            let end = (end..=text.len()).find(|&end| text.is_char_boundary(end)).unwrap();
            let other = self.of(&files).to_owned();
            let new = match self.below(5) {
                0 => String::new(),
                1 => text[start..end].repeat(2 + self.below(200)),
                2 => PIECES[self.below(PIECES.len())].to_owned(),
                3 => other,
                _ => format!("{}{}", PIECES[self.below(PIECES.len())], &text[start..end]),
            };
            if text.len() + new.len() < 200_000 {
                text.replace_range(start..end, &new);
            }
        }
        text
    }
}
