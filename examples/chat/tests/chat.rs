//! The example programs, run as a reader of the README runs them.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs a program with the pinned compiler on PATH and a cache of the checkout's own.
fn run(program: &str, arguments: &[&str]) -> Output {
    let tools = checkout().join(".tracewright/venv/bin").canonicalize().unwrap();
    let path = std::env::join_paths([tools, "/usr/bin".into(), "/bin".into()]).unwrap();
    let cache = checkout().join(".tracewright/cache");
    let mut command = Command::new(program);
    command.args(arguments).current_dir(checkout()).env("PATH", path).env("XDG_CACHE_HOME", cache);
    command.output().unwrap()
}

#[track_caller]
fn printed(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_question_is_answered_by_each_shipped_model() {
    for model in ["demo", "demo-gemma3"] {
        let answer = printed(env!("CARGO_BIN_EXE_chat"), &[model, "Tell me a story about a fox"]);
        assert!(answer.split_whitespace().count() > 20 && answer.ends_with('\n'), "{model}: {answer}");
    }
    let lines = include_str!("../src/main.rs").lines().count();
    assert!(lines <= 15, "the program has {lines} lines");
}

#[test]
fn two_texts_are_compared() {
    let model = "tests/fixtures/embeddinggemma";
    let similarity = |first: &str, second: &str| -> f64 {
        let said = printed(env!("CARGO_BIN_EXE_similarity"), &[model, first, second]);
        said.trim().strip_prefix("cosine similarity ").unwrap().parse().unwrap()
    };
    assert_eq!(similarity("a b c", "a b c"), 1.0);
    assert!(similarity("a b c", "x y") < 0.9999);
}

#[test]
fn four_threads_get_what_each_would_get_alone() {
    let texts = printed(env!("CARGO_BIN_EXE_threads"), &["demo"]);
    for beginning in ["Once upon a time", "The fox", "In the morning", "There was a bird"] {
        assert!(texts.contains(beginning), "{texts}");
    }
}

#[test]
fn a_mistake_ends_with_its_reason() {
    let output = run(env!("CARGO_BIN_EXE_chat"), &["nowhere", "Why?"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("nowhere"));
}
