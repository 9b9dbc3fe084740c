//! A model whose layers look through a window, by each command that makes something of it: the shipped Gemma 3.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::support::*;

const SIZES: &[&str] = &["--dtype", "f32", "--context", "512", "--chunk", "16"];

/// A prompt of more than ten windows, its tokens and what transformers goes on with.
fn long_prompt() -> (String, Value, Value) {
    let file = fs::read(root().join("tests/fixtures/demo-gemma3.json")).unwrap();
    let golden: Value = serde_json::from_slice(&file).unwrap();
    let config = fs::read(root().join("demo-gemma3/config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let window = config["sliding_window"].as_u64().unwrap() as usize;
    let far = |prompt: &&Value| prompt["prompt_tokens"].as_array().unwrap().len() > 10 * window;
    let prompt = golden["prompts"].as_array().unwrap().iter().find(far).unwrap();
    (prompt["prompt"].as_str().unwrap().into(), prompt["prompt_tokens"].clone(), prompt["tokens"].clone())
}

#[track_caller]
fn continues(command: &mut Command) {
    let (prompt, given, tokens) = long_prompt();
    let ran = succeed(command.args(["-p", &prompt, "-n", "48", "--ignore-eos", "--json"]));
    let object: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&object["prompt_tokens"], &object["tokens"]), (&given, &tokens));
}

#[test]
fn generate_gives_the_tokens_of_transformers() {
    let model = root().join("demo-gemma3");
    // Sizes other than those of the export below: a chunk that the prompt does not fill, and one thread.
    let other = ["--dtype", "f32", "--context", "512", "--chunk", "50", "--threads", "1"];
    continues(tracewright(&["generate", text(&model)]).args(other));
}

/// An export runs by itself, and `bake` writes the same archive.
#[test]
fn export_and_bake_make_what_generate_runs() {
    let (model, out) = (root().join("demo-gemma3"), folder());
    let (export, archive) = (out.path().join("export"), out.path().join("baked.irpa"));
    succeed(tracewright(&["export", text(&model), "-o", text(&export)]).args(SIZES));
    continues(&mut bare(&["generate", text(&export), "--verify"]));
    let manifest = manifest(&export);
    let entries = manifest["entry_points"].as_array().unwrap();
    assert!(entries.iter().any(|entry| entry.to_string().contains("ring")), "{manifest}");
    succeed(bare(&["bake", text(&model), "-o", text(&archive)]).args(SIZES));
    let [exported, baked] = [export.join("model.irpa"), archive].map(|path| fs::read(path).unwrap());
    assert_eq!(blake3::hash(&exported), blake3::hash(&baked));
}
