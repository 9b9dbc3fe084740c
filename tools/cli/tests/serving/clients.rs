//! Clients of the registries, unchanged. `cargo xtask test` installs them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use crate::client::*;
use crate::images::SEES;
use crate::support::*;

/// A server with a model for chats, one for embeddings and one for scores.
static BOTH: LazyLock<Serving> = LazyLock::new(|| {
    let embedder = format!("embedder={}", text(&fixture("embeddinggemma")));
    let reranker = format!("reranker={}", text(&fixture("bert-score")));
    let listener = format!("listener={}", text(&fixture("whisper")));
    Serving::until_the_end(&[text(&demo()), &embedder, &reranker, &listener])
});

/// The Python packages of a folder, if one of them is installed.
fn packages(folder: &str, package: &str) -> Option<PathBuf> {
    let lib = root().join(".tracewright").join(folder).join("lib");
    let lib = fs::read_dir(lib).into_iter().flatten().flatten();
    lib.map(|python| python.path().join("site-packages")).find(|path| path.join(package).is_dir())
}

#[track_caller]
fn python(client: &str) {
    python_on(client, &BOTH);
}

#[track_caller]
fn python_on(client: &str, serving: &Serving) {
    let Some(packages) = packages("clients", "openai") else {
        eprintln!("clients are left out: `cargo xtask setup --clients` installs them");
        return;
    };
    let script = root().join("tools/cli/tests/serving/clients.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(client).arg(serving.port.to_string()).env("PYTHONPATH", packages);
    // No client asks another server.
    command.env("LANGSMITH_TRACING", "false").env("NO_PROXY", "*");
    assert_eq!(succeed(&mut command).out, "good\n");
}

#[test]
fn openai_python_chats() {
    python("openai_chat");
}

#[test]
fn openai_python_embeds() {
    python("openai_embeddings");
}

#[test]
fn openai_python_transcribes() {
    python("openai_audio");
}

#[test]
fn openai_python_uses_responses() {
    python("openai_responses");
}

#[test]
fn anthropic_python() {
    python("anthropic");
}

#[test]
fn openai_python_sends_images() {
    python_on("openai_images", &SEES);
}

#[test]
fn anthropic_python_sends_images() {
    python_on("anthropic_images", &SEES);
}

#[test]
fn langchain() {
    python("langchain");
}

#[test]
fn cohere() {
    python("cohere");
}

#[test]
fn ollama() {
    let embedder = format!("embedder={}", text(&fixture("embeddinggemma")));
    // It unloads a model.
    python_on("ollama", &Serving::of(&[text(&demo()), &embedder]));
}

/// lm-eval finds the scores on a real model that it finds with transformers, which the golden contains.
#[test]
fn lm_eval_scores_as_with_transformers() {
    if !is_long() {
        return;
    }
    let packages = packages("lm-eval", "lm_eval").expect("`cargo xtask test --long` installs lm-eval");
    let model = smollm2().expect("`cargo xtask setup` installs SmolLM2 for the long form");
    let sizes = ["--dtype", "f32", "--quant", "none", "--context", "64", "--chunk", "16"];
    let serving = Serving::of_sizes(&[text(&model)], &sizes);
    let mut command = Command::new("python3");
    command.arg(root().join("tests/oracle/lm_eval_task.py")).env("PYTHONPATH", packages).env("NO_PROXY", "*");
    command.args(["--url", &format!("http://127.0.0.1:{}/v1/completions", serving.port), "--golden"]);
    let out = succeed(command.arg(root().join("tools/cli/tests/goldens/lm_eval.json"))).out;
    assert!(out.contains("acc 0.85"), "{out}");
}

/// The folder of npm's packages, if `node` exists and the package is installed.
fn node_package(name: &str) -> Option<PathBuf> {
    let folder = root().join(".tracewright/clients-js");
    let has_node = Command::new("node").arg("--version").output().is_ok_and(|output| output.status.success());
    if has_node && folder.join("node_modules").join(name).is_dir() {
        return Some(folder);
    }
    eprintln!("{name} is left out: `cargo xtask setup --clients` installs it if node exists");
    None
}

#[test]
fn openai_javascript() {
    let Some(folder) = node_package("openai") else { return };
    let mut command = Command::new("node");
    command.arg(root().join("tools/cli/tests/serving/clients.mjs")).arg(folder.join("node_modules/openai"));
    assert_eq!(succeed(command.arg(BOTH.port.to_string())).out, "good\n");
}

/// The chat page in a browser: `page.mjs` lists the checks.
#[test]
fn the_page_chats_in_a_browser() {
    let Some(folder) = node_package("@sparticuz/chromium") else { return };
    let serving = Serving::of(&[text(&demo())]);
    let mut command = Command::new("node");
    command.arg(root().join("tools/cli/tests/serving/page.mjs")).arg(&folder).arg(serving.port.to_string());
    // The package unpacks the browser into the temporary folder once.
    let browser = folder.join("browser");
    fs::create_dir_all(&browser).unwrap();
    assert_eq!(succeed(command.env("TMPDIR", browser)).out, "good\n");
}
