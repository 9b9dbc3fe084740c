//! A network of one's own, from its configuration to text, by the command line alone.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn run(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_parallel-cli")).args(words).env_clear().output().unwrap()
}

#[track_caller]
fn succeed(words: &[&str]) -> String {
    let output = run(words);
    assert!(output.status.success(), "{words:?}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn iree_compile() -> PathBuf {
    let lib = checkout().join(".tracewright/venv/lib");
    let pythons = fs::read_dir(&lib).into_iter().flatten().flatten();
    let place = "site-packages/iree/compiler/_mlir_libs/iree-compile";
    let found = pythons.map(|python| python.path().join(place)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("no `iree-compile` in {}: run `cargo xtask setup`", lib.display()))
}

#[test]
fn it_is_run_and_exported_and_says_what_the_chapter_shows() {
    let config = checkout().join("examples/parallel/model/config.json");
    let folder = tempfile::tempdir().unwrap();
    let [model, out, cache] = ["model", "out", "cache"].map(|name| folder.path().join(name));
    let [config, model, out, cache] = [&config, &model, &out, &cache].map(|path| path.to_str().unwrap());
    let compiler = iree_compile();
    let compile = ["--iree-compile", compiler.to_str().unwrap(), "--cache", cache];
    let prompt = ["--tokens", "5,17,3", "-n", "20"];

    succeed(&["random", config, "-o", model, "--seed", "1"]);
    let tokens = succeed(&[&["generate", model][..], &prompt, &compile].concat());
    let chapter = fs::read_to_string(checkout().join("docs/tutorials/own-network.md")).unwrap();
    assert!(chapter.contains(&format!("```text\n{}\n```", tokens.trim())), "{tokens}");

    succeed(&[&["export", model, "-o", out, "--context", "64"][..], &compile].concat());
    assert_eq!(succeed(&[&["generate", out][..], &prompt].concat()), tokens, "without compiler and cache");
}

#[test]
fn its_configuration_is_read_by_its_own_reader() {
    let folder = tempfile::tempdir().unwrap();
    let config = checkout().join("examples/parallel/model/config.json");
    let text = fs::read_to_string(config).unwrap().replace("\"depth\"", "\"dept\"");
    fs::write(folder.path().join("config.json"), text).unwrap();
    let output = run(&["random", folder.path().to_str().unwrap(), "-o", "nowhere"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for word in ["2 problem(s)", "`depth` is missing", "`dept` is not a known key"] {
        assert!(said.contains(word), "`{word}` is not in\n{said}");
    }
}
