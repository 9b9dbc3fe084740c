//! Drafts that change no answer, and sequences that are kept in files.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::schemas::SIZES;
use crate::support::*;

/// The demo's answer, as JSON.
fn generate(prompt: &str, arguments: &[&str]) -> Value {
    let mut command = tracewright(&["generate", text(&demo()), "-p", prompt, "--json"]);
    serde_json::from_str(&succeed(command.args(SIZES).args(arguments)).out).unwrap()
}

fn count(answer: &Value, name: &str) -> u64 {
    answer["timings"][name].as_u64().unwrap()
}

#[test]
fn drafts_change_the_steps_and_not_the_answer() {
    let folder = folder();
    let schema = folder.path().join("schema.json");
    let kinds = json!({"type": "array", "minItems": 6, "maxItems": 6, "items": {"enum": ["a red fox", "a grey owl"]}});
    fs::write(&schema, kinds.to_string()).unwrap();
    let draft = format!("draft={}", text(&demo()));
    let prompt = "The fox went to the well. The owl went to the well. The fox went to the";
    for flags in [
        &["-n", "60"][..],
        &["-n", "60", "--temp", "0.7", "--seed", "5", "--repeat-penalty", "1.05", "--top-p", "0.95"],
        &["-n", "99", "--json-schema", text(&schema)],
    ] {
        let with = |speculate: &str| generate(prompt, &[flags, &["--speculate", speculate]].concat());
        let plain = with("off");
        assert_eq!([count(&plain, "drafted_tokens"), count(&plain, "accepted_tokens")], [0, 0]);
        for speculate in ["lookup", &draft] {
            let found = with(speculate);
            assert_eq!(found["tokens"], plain["tokens"], "{flags:?} {speculate}");
            assert_eq!(found["finish"], plain["finish"]);
            assert!(count(&found, "accepted_tokens") <= count(&found, "drafted_tokens"));
            if speculate != "lookup" && !flags.contains(&"--json-schema") {
                // The draft model is the model itself.
                assert!(2 * count(&found, "decode_steps") < count(&plain, "decode_steps"), "{found}");
            }
        }
    }
}

#[test]
fn a_draft_model_must_have_the_tokens_of_the_model() {
    let demo = demo();
    let other = root().join("demo-gemma3");
    let draft = format!("draft={}", text(&other));
    let command = |speculate: &str| {
        let mut command = tracewright(&["generate", text(&demo), "-p", "Once", "--speculate", speculate]);
        command.args(SIZES);
        command
    };
    refused(&mut command(&draft), 1, &["TW0824", "demo-gemma3", "another tokenizer"]);
    refused(&mut command("draft="), 2, &["expected `off`, `lookup`, `draft=MODEL` or `mtp`"]);
    refused(&mut command("draft=no-such-model"), 1, &["no-such-model"]);
    refused(&mut command("mtp"), 1, &["TW0826", "family has no module for multi-token prediction"]);
}

/// The second run computes what is new, and answers the same.
#[test]
fn a_prompt_cache_holds_the_state_of_its_tokens() {
    let folder = folder();
    let file = folder.path().join("story.seq");
    let cached = ["--prompt-cache", text(&file), "-n", "20"];
    let story = "Once upon a time there was a fox who lived in a house by the sea with three small owls. ";
    let plain = generate(story, &["-n", "20"]);
    let first = generate(story, &cached);
    let again = generate(story, &cached);
    let longer = format!("{story}One day the owls");
    let fresh = generate(&longer, &["-n", "20"]);
    let more = generate(&longer, &cached);
    for answer in [&first, &again] {
        assert_eq!(answer["tokens"], plain["tokens"]);
    }
    assert_eq!(more["tokens"], fresh["tokens"]);
    let all = plain["prompt_tokens"].as_array().unwrap().len() as u64;
    assert_eq!([&plain, &first, &again].map(|answer| count(answer, "prefill_tokens")), [all, all, 1]);
    assert!(count(&more, "prefill_tokens") < 8, "{more}");

    // Whatever byte changes, the file is refused, and stays.
    let bytes = fs::read(&file).unwrap();
    let refuse = |bytes: &[u8], words: &[&str]| {
        fs::write(&file, bytes).unwrap();
        let mut command = tracewright(&["generate", text(&demo()), "-p", story]);
        refused(command.args(SIZES).args(cached), 1, words);
        assert_eq!(fs::read(&file).unwrap(), bytes);
    };
    for place in [9, 40, bytes.len() / 2, bytes.len() - 1] {
        let mut damaged = bytes.clone();
        damaged[place] ^= 1;
        refuse(&damaged, &["TW0825", "story.seq", "is damaged"]);
    }
    refuse(&bytes[..bytes.len() / 2], &["TW0825", "is damaged"]);
    refuse(&[&bytes[..7], &[9], &bytes[8..]].concat(), &["TW0825", "has version 9 of the format"]);
    refuse(b"something else", &["TW0009", "it is not a saved sequence"]);
    fs::write(&file, &bytes).unwrap();
    // Baked now, so that nothing is told of that below.
    generate(story, &["-n", "1", "--quant", "q8"]);
    let mut command = tracewright(&["generate", text(&demo()), "-p", story, "--quant", "q8"]);
    refused(command.args(SIZES).args(cached), 1, &["TW0825", "was saved with the weights"]);
    let mut command = tracewright(&["generate", text(&demo()), "-p", story, "--kv", "q8"]);
    refused(
        command.args(SIZES).args(cached),
        1,
        &["TW0825", "was saved with the state tensor `state(kv.keys, layer 0)"],
    );
    // A file of the model is none that may be written.
    let config = demo().join("config.json");
    let mut command = tracewright(&["generate", text(&demo()), "-p", story, "--prompt-cache", text(&config)]);
    refused(command.args(SIZES), 1, &["is a file of the model itself"]);
}

fn chat(lines: &str, arguments: &[&str]) -> Ran {
    let mut command: Command = tracewright(&["chat", text(&demo()), "-n", "16"]);
    command.args(SIZES).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let ran = Ran { code: output.status.code(), out: words(&output.stdout), err: words(&output.stderr) };
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    ran
}

#[test]
fn a_chat_goes_on_where_its_session_ended() {
    let folder = folder();
    let file = folder.path().join("chat.seq");
    let session = ["--session", text(&file)];
    let (first, second) = ("Tell me of a fox.\n", "And what of the owl?\n");
    let whole = chat(&format!("{first}{second}"), &[]);
    let begun = chat(first, &session);
    assert!(Path::new(&file).exists());
    let ended = chat(second, &session);
    assert_eq!(format!("{}{}", begun.out, ended.out), whole.out);
    assert!(ended.err.contains("the chat goes on behind 2 messages"), "{}", ended.err);
    // As many tokens are new as in the chat that was not left.
    let new = |ran: &Ran| {
        let line = ran.err.lines().rfind(|line| line.contains("of them new")).unwrap().to_owned();
        line.split(" tokens, ").nth(1).unwrap().split(' ').next().unwrap().to_owned()
    };
    assert_eq!(new(&ended), new(&whole), "{}\n{}", ended.err, whole.err);
}
