//! Each command opens each file of a model once, in all of its processes together.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::gguf::{gguf, with_key};
use crate::schemas::SIZES;
use crate::support::*;

/// The commands that take no model.
const WITHOUT: [&str; 7] = ["models", "doctor", "devices", "explain", "completions", "man", "help"];

/// Counts opens with a library that stands in front of the system's.
struct Opens {
    library: PathBuf,
    folder: TempDir,
}

impl Opens {
    fn new() -> Self {
        let folder = folder();
        let library = folder.path().join("opens.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/opens.c");
        let mut cc = Command::new("cc");
        let built = cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Self { library, folder }
    }

    fn list(&self) -> PathBuf {
        self.folder.path().join("list")
    }

    fn watch<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let _ = fs::remove_file(self.list());
        command.env("LD_PRELOAD", &self.library).env("OPENS", self.list())
    }

    /// The files of a model that were opened several times, and the counts. A copy in `out` is one more.
    fn several(&self, model: &Path, out: &Path) -> Vec<String> {
        let mut counts = BTreeMap::new();
        let list = fs::read_to_string(self.list()).unwrap();
        let opened = list.lines().map(Path::new);
        for path in opened.filter(|path| path.starts_with(model) && path.is_file()) {
            *counts.entry(path).or_insert(0) += 1;
        }
        assert!(!counts.is_empty(), "no file of {} is in {list}", model.display());
        let name = |path: &Path| path.strip_prefix(model).unwrap_or(path).to_owned();
        let copies = |path: &Path| usize::from(out.is_dir() && out.join(name(path)).exists());
        let several = counts.into_iter().filter(|(path, count)| *count > 1 + copies(path));
        several.map(|(path, count)| format!("{count} × {}", name(path).display())).collect()
    }
}

/// A model with every file that a reader looks for.
fn whole_folder() -> TempDir {
    let model = copied_demo();
    let template = r#"{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"#;
    fs::write(model.path().join("chat_template.jinja"), template).unwrap();
    fs::write(model.path().join("special_tokens_map.json"), r#"{"bos_token": "<|begin_of_text|>"}"#).unwrap();
    fs::write(model.path().join("added_tokens.json"), "{}").unwrap();
    model
}

/// A model with a tokenizer of 40 tokens and a chat template.
fn whole_gguf() -> TempDir {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let list = |kind: u32, values: Vec<Vec<u8>>| {
        [&kind.to_le_bytes()[..], &(values.len() as u64).to_le_bytes(), &values.concat()].concat()
    };
    let letters = ('a'..='z').chain('A'..='J').map(String::from);
    let tokens = ["<unk>", "<s>", "</s>", "▁"].map(String::from).into_iter().chain(letters);
    let mut bytes = fs::read(gguf("llama")).unwrap();
    let key = b"tokenizer.ggml.model";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len();
    bytes[at - 1] = b'_';
    for (name, kind, value) in [
        ("ggml.model", 8, text("llama")),
        ("ggml.tokens", 9, list(8, tokens.map(|token| text(&token)).collect())),
        ("ggml.scores", 9, list(6, (0..40_u8).map(|id| f32::from(id).to_le_bytes().to_vec()).collect())),
        (
            "ggml.token_type",
            9,
            list(5, (0..40).map(|id| (if id < 3 { 3_i32 } else { 1 }).to_le_bytes().to_vec()).collect()),
        ),
        ("chat_template", 8, text("{{ bos_token }}{{ messages[0].content }}")),
    ] {
        bytes = with_key(&bytes, &format!("tokenizer.{name}"), kind, &value);
    }
    let folder = folder();
    fs::write(folder.path().join("model.gguf"), bytes).unwrap();
    folder
}

/// Serves a model, asks it once, and stops it.
fn serve(command: &mut Command, path: &str, body: &str) {
    let mut child = spawn(command);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let address =
        lines.find_map(|line| Some(line.rsplit_once("listening on http://")?.1.to_owned())).unwrap();
    let mut stream = TcpStream::connect(&address).unwrap();
    let head = format!("Host: {address}\r\nConnection: close\r\nContent-Type: application/json");
    write!(stream, "POST {path} HTTP/1.1\r\n{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    interrupt(&child);
    child.wait().unwrap();
}

/// Runs each command, and checks how often it opens each file of its model. `OUT` becomes a new path.
fn check(model: &Path, sizes: &[&str], commands: &[&[&str]]) {
    let (opens, folder) = (Opens::new(), folder());
    let text_file = folder.path().join("text");
    fs::write(&text_file, "once upon a time there was a little girl in the park ".repeat(4)).unwrap();
    let mut failures = Vec::new();
    for (number, words) in commands.iter().enumerate() {
        let out = folder.path().join(number.to_string());
        let word = |word: &&str| match *word {
            "MODEL" => text(model).to_owned(),
            "CONFIG" => text(&model.join("config.json")).to_owned(),
            "OUT" => text(&out).to_owned(),
            "TEXT" => text(&text_file).to_owned(),
            "AUDIO" => text(&root().join("run/audio/tests/clips/tones.flac")).to_owned(),
            word => word.to_owned(),
        };
        let sizes = if words.contains(&"SIZES") { sizes } else { &[] };
        let words: Vec<String> =
            words.iter().filter(|word| **word != "SIZES").chain(sizes).map(word).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command =
            if words[0] == "trace-dump" { trace_dump(&words[1..]) } else { tracewright(&words) };
        let command = opens.watch(&mut command);
        match words[0] {
            "serve" if model.ends_with("embeddinggemma") => {
                serve(command, "/v1/embeddings", r#"{"input": ["a", "a b c d e f g h i j"]}"#);
            }
            "serve" => {
                let body = r#"{"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}"#;
                serve(command, "/v1/chat/completions", body);
            }
            "chat" => {
                let mut child = spawn(command.stdin(Stdio::piped()));
                child.stdin.take().unwrap().write_all(b"a\na\n").unwrap();
                let output = child.wait_with_output().unwrap();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            }
            // A GGUF file has no hashes, and outputs may diverge.
            "verify" | "bisect" => drop(run(command)),
            _ => drop(succeed(command)),
        }
        let several = opens.several(model, &out);
        if !several.is_empty() {
            failures.push(format!("{}: {}", words.join(" "), several.join(", ")));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

const FOLDER: &[&[&str]] = &[
    &["generate", "MODEL", "--chat", "a", "-n", "2", "--prompt-cache", "OUT", "SIZES"],
    &["chat", "MODEL", "-n", "2", "SIZES"],
    &["serve", "MODEL", "--port", "0", "SIZES"],
    &["serve", "MODEL", "--port", "0", "--isolate-templates", "SIZES"],
    &["prompt", "MODEL", "--chat", "a"],
    &["tokenize", "MODEL", "a"],
    &["plan", "MODEL", "SIZES"],
    &["bake", "MODEL", "-o", "OUT", "SIZES"],
    &["export", "MODEL", "-o", "OUT", "SIZES"],
    &["export", "MODEL", "-o", "OUT", "--engine", "xla", "SIZES"],
    &["quantize", "MODEL", "-o", "OUT"],
    &["tune", "MODEL", "--show", "--cache", "OUT", "SIZES"],
    &["bench", "trace", "CONFIG", "--rounds", "1", "SIZES"],
    &["bench", "bake", "MODEL", "--rounds", "1", "--quant", "none,q8"],
    &["random", "MODEL", "-o", "OUT"],
    &["fingerprint", "MODEL"],
    &["trace-dump", "MODEL", "SIZES"],
];

const GGUF: &[&[&str]] = &[
    &["generate", "MODEL", "--chat", "a", "-n", "2", "--prompt-cache", "OUT", "SIZES"],
    &["chat", "MODEL", "-n", "2", "SIZES"],
    &["serve", "MODEL", "--port", "0", "SIZES"],
    &["serve", "MODEL", "--port", "0", "--isolate-templates", "SIZES"],
    &["prompt", "MODEL", "--chat", "a"],
    &["tokenize", "MODEL", "a"],
    &["plan", "MODEL", "SIZES"],
    &["bake", "MODEL", "-o", "OUT", "SIZES"],
    &["export", "MODEL", "-o", "OUT", "SIZES"],
    &["verify", "MODEL"],
    &["bisect", "MODEL", "--tokens", "5,17", "SIZES"],
    &["quality", "MODEL", "-f", "TEXT", "--window", "16", "--windows", "1", "SIZES"],
    &["quantize", "MODEL", "-o", "OUT", "--calibrate", "TEXT", "--window", "16", "--windows", "1"],
    &["tune", "MODEL", "--budget", "1s", "--cache", "OUT", "SIZES"],
    &["bench", "decode", "MODEL", "--tokens", "2", "--rounds", "1", "SIZES"],
    &["trace-dump", "MODEL", "SIZES"],
];

const EMBEDDING: &[&[&str]] = &[
    &["embed", "MODEL", "-p", "a", "-p", "a b c", "SIZES"],
    &["serve", "MODEL", "--port", "0"],
    &["quantize", "MODEL", "-o", "OUT"],
];

const RERANKER: &[&[&str]] = &[&["rerank", "MODEL", "a", "-p", "b", "-p", "a b c", "SIZES"]];

const SPEECH: &[&[&str]] = &[&["transcribe", "MODEL", "AUDIO", "SIZES"]];

#[test]
fn each_file_of_a_folder_is_opened_once() {
    check(whole_folder().path(), &SIZES, FOLDER);
}

#[test]
fn a_gguf_file_is_opened_once() {
    check(&whole_gguf().path().join("model.gguf"), SMALL, GGUF);
}

#[test]
fn each_file_of_an_embedding_model_is_opened_once() {
    check(&fixture("embeddinggemma"), &["--dtype", "f32", "--length", "40", "--batch", "4"], EMBEDDING);
}

#[test]
fn each_file_of_a_reranker_is_opened_once() {
    check(&fixture("bert-score"), &["--dtype", "f32", "--length", "16"], RERANKER);
}

#[test]
fn each_file_of_a_speech_model_is_opened_once() {
    check(&fixture("whisper"), &["--dtype", "f32"], SPEECH);
}

/// The fingerprint of the weights is that of the file.
#[test]
fn each_file_is_opened_once_for_a_sequence_that_xla_computes() {
    let Some(plugin) = cpu_plugin() else { return };
    let line =
        ["generate", "MODEL", "--chat", "a", "-n", "2", "--prompt-cache", "OUT", "--engine", "xla", "SIZES"];
    let line = [&line[..], &["--plugin", text(&plugin)]].concat();
    check(whole_folder().path(), &SIZES, &[&line]);
    check(&whole_gguf().path().join("model.gguf"), SMALL, &[&line]);
}

#[test]
fn each_command_with_a_model_is_counted() {
    let help = succeed(&mut bare(&["--help"])).out;
    let names = help.split_once("Commands:\n").unwrap().1.split_once("\n\n").unwrap().0;
    let counted: Vec<&str> =
        [FOLDER, GGUF, EMBEDDING, RERANKER, SPEECH].concat().iter().map(|words| words[0]).collect();
    for name in names.lines().filter_map(|line| line.split_whitespace().next()) {
        assert_ne!(counted.contains(&name), WITHOUT.contains(&name), "{name}");
    }
}
