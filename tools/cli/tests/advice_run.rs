//! Errors name the true cause and a step that works: for commands that run a model.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::*;

/// Gives a command this text on stdin.
fn fed(command: &mut Command, input: &str) -> Ran {
    let mut child = spawn(command.stdin(Stdio::piped()));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
}

fn generate(more: &[&str]) -> Command {
    let mut command = tracewright(&["generate", text(&demo()), "--context", "64", "--chunk", "1"]);
    command.args(more);
    command
}

#[test]
fn a_gguf_file_that_generates_is_not_embedded() {
    let gguf = fixture("gguf").join("q4_0.gguf");
    let words =
        ["error[TW0106]", "q4_0.gguf`: the architecture `llama` generates text", "tracewright generate"];
    refused(&mut tracewright(&["embed", text(&gguf), "-p", "a"]), 1, &words);
}

/// Without a limit, an answer ends with the model's end of text or with the context.
#[test]
fn no_limit_of_new_tokens() {
    let tokens = |more: &[&str]| {
        let json = succeed(generate(&["-p", "Once", "--ignore-eos", "--json"]).args(more)).out;
        let json: Value = serde_json::from_str(&json).unwrap();
        (json["tokens"].as_array().unwrap().len(), json["finish"].clone())
    };
    for flag in ["-n", "--max-tokens", "--n-predict"] {
        let (count, finish) = tokens(&[flag, "-1"]);
        assert!(count > 40 && finish == "context", "{flag}: {count} {finish}");
    }
    for value in ["-2", "many"] {
        let words = format!(
            "invalid value '{value}' for '--max-tokens <N>': expected a number of tokens, or -1 for no limit"
        );
        refused(&mut generate(&["-p", "Once", "-n", value]), 2, &[&words]);
    }
    let mut chat = tracewright(&["chat", text(&demo()), "--context", "64", "--chunk", "1", "-n", "-1"]);
    let ran = fed(&mut chat, "Hello\n");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
}

#[test]
fn a_message_wins_over_a_prompt_in_a_variable() {
    let out = |command: &mut Command| succeed(command).out;
    let expected = out(&mut generate(&["--chat", "Hello", "-n", "4"]));
    assert_eq!(out(generate(&["--chat", "Hello", "-n", "4"]).env("TRACEWRIGHT_PROMPT", "Once")), expected);
    let mut both = generate(&["-n", "4"]);
    both.env("TRACEWRIGHT_PROMPT", "Once").env("TRACEWRIGHT_CHAT", "Hello");
    let words = ["`TRACEWRIGHT_PROMPT` sets `--prompt`", "`TRACEWRIGHT_CHAT` sets `--chat`"];
    refused(&mut both, 2, &words);
    // What only the command knows to contradict each other.
    let mut system = generate(&["-p", "Once", "-n", "4"]);
    let words =
        ["`--system` belongs to `--chat`", "the environment variable `TRACEWRIGHT_SYSTEM` sets `--system`"];
    refused(system.env("TRACEWRIGHT_SYSTEM", "Be brief."), 2, &words);
}

#[test]
fn an_input_may_be_stdin() {
    let said = |ran: Ran| {
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        ran.out
    };
    let expected = succeed(&mut generate(&["-p", "Once upon", "-n", "4"])).out;
    assert_eq!(said(fed(&mut generate(&["-f", "-", "-n", "4"]), "Once upon")), expected);
    assert_eq!(said(fed(&mut generate(&["-f", "-", "-n", "4"]), "\u{feff}Once upon")), expected);
    let schema = r#"{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}"#;
    let answer = said(fed(&mut generate(&["-p", "Once", "-n", "30", "--json-schema", "-"]), schema));
    assert!(answer.starts_with('{'), "{answer}");
    let answer = said(fed(&mut generate(&["-p", "Once", "-n", "30", "--grammar", "-"]), "start: \"yes\""));
    assert_eq!(answer, "yes\n");
    let twice = fed(&mut generate(&["-f", "-", "-n", "4", "--grammar", "-"]), "start: \"yes\"");
    assert_eq!(twice.code, Some(2), "{}", twice.err);
    assert!(twice.err.contains("`-` is stdin, which the command reads only once"), "{}", twice.err);
    let mut chat = tracewright(&["chat", text(&demo()), "--tools", "-", "--context", "64", "--chunk", "1"]);
    let twice = fed(&mut chat, "[]");
    assert!(twice.code == Some(2) && twice.err.contains("`-` is stdin"), "{}", twice.err);
}

#[test]
fn a_byte_order_mark_in_the_files_of_a_run() {
    let expected = succeed(&mut generate(&["-p", "Once", "-n", "4"])).out;
    let marked = |path: &std::path::Path, text: &str| fs::write(path, format!("\u{feff}{text}")).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        let model = copied_demo();
        let path = model.path().join(name);
        marked(&path, &fs::read_to_string(&path).unwrap());
        let mut command = tracewright(&["generate", text(model.path()), "--context", "64", "--chunk", "1"]);
        assert_eq!(succeed(command.args(["-p", "Once", "-n", "4"])).out, expected, "{name}");
        succeed(&mut tracewright(&["prompt", text(model.path()), "--chat", "Hello"]));
    }
    let folder = folder();
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        marked(&path, content);
        text(&path).to_owned()
    };
    let grammar = file("g.lark", "start: \"yes\"");
    assert_eq!(succeed(&mut generate(&["-p", "Once", "--grammar", &grammar])).out, "yes\n");
    let schema = file("s.json", "{\"const\": 1}");
    assert_eq!(succeed(&mut generate(&["-p", "Once", "--json-schema", &schema])).out, "1\n");
    let messages = file("m.json", r#"[{"role": "user", "content": "Hello"}]"#);
    let demo = demo();
    let chat = |more: &[&str]| succeed(tracewright(&["prompt", text(&demo)]).args(more)).out;
    assert_eq!(chat(&["--messages", &messages]), chat(&["--chat", "Hello"]));
    let wide = folder.path().join("wide.txt");
    fs::write(&wide, b"\xff\xfeO\0n\0").unwrap();
    let words = ["it is UTF-16 text, expected UTF-8; save the file as UTF-8"];
    refused(&mut generate(&["-f", text(&wide)]), 1, &words);
}

fn signalled(child: Child, signal: &str) -> (Option<i32>, String) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The command with the least priority: this test runs before it on a busy machine.
#[cfg(unix)]
fn niced(command: &Command) -> Command {
    let mut niced = Command::new("/usr/bin/nice");
    niced.args(["-n", "19"]).arg(command.get_program()).args(command.get_args()).env_clear();
    niced.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    niced
}

/// The exit code names the signal, as shells do: 128 and its number.
#[cfg(unix)]
#[test]
fn the_exit_code_names_the_signal() {
    // With a chunk of one token, the text ends before the signal.
    let sizes = ["--dtype", "f32", "--context", "1024", "--chunk", "64"];
    let folder = folder();
    for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let logits = folder.path().join("logits.safetensors");
        let mut command = tracewright(&["generate", text(&demo()), "-p", "Once"]);
        command.args(sizes).args(["-n", "-1", "--ignore-eos", "--save-logits", text(&logits)]);
        let mut command = niced(&command);
        // On a busy machine, a text can be whole before the signal arrives.
        let mut ran = (0..20).map(|_| {
            _ = fs::remove_file(&logits);
            let mut child = spawn(&mut command);
            child.stdout.as_mut().unwrap().read_exact(&mut [0; 20]).unwrap();
            signalled(child, signal)
        });
        let (found, said) = ran.find(|(code, _)| *code != Some(0)).unwrap();
        assert_eq!(found, Some(code), "{signal}: {said}");
        assert!(said.contains("interrupted"), "{said}");
        assert!(listing(folder.path()).is_empty(), "{:?}", listing(folder.path()));

        // In a chat, Ctrl-C ends an answer, and the others end the chat.
        let mut chat = tracewright(&["chat", text(&demo()), "-n", "-1"]);
        let mut child = spawn(chat.args(sizes).stdin(Stdio::piped()));
        let mut typed = child.stdin.take().unwrap();
        writeln!(typed, "Hello").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 10]).unwrap();
        if signal == "-INT" {
            drop(typed);
        }
        let (found, said) = signalled(child, signal);
        let expected = if signal == "-INT" { [Some(0), Some(130)] } else { [Some(code); 2] };
        assert!(expected.contains(&found), "{signal}: {found:?} {said}");
    }
}

/// After `cargo xtask setup --xla`, `--engine xla` finds the plugin that the setup has installed.
#[test]
fn the_plugin_of_the_checkout_is_found() {
    let Some(plugin) = cpu_plugin() else { return };
    let model = fixture("llama-tied");
    let mut command = bare(&["generate", text(&model), "--engine", "xla", "--tokens", "5", "-n", "2"]);
    succeed(command.args(SMALL).env("TRACEWRIGHT_CACHE", root().join(".tracewright/cache")));
    let listed = succeed(&mut tracewright(&["devices", "--json"])).out;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let found =
        listed["plugins"].as_array().unwrap().iter().any(|one| one.to_string().contains(text(&plugin)));
    assert!(found, "{listed}");
}

#[test]
fn an_old_importance_matrix_is_named() {
    let folder = folder();
    let old = folder.path().join("imatrix.dat");
    let name = b"blk.0.attn_q.weight";
    let head = [1u32.to_le_bytes(), (name.len() as u32).to_le_bytes()].concat();
    fs::write(&old, [&head, &name[..], &[0; 40]].concat()).unwrap();
    let out = folder.path().join("out");
    let mut command = tracewright(&["quantize", text(&demo()), "-o", text(&out), "--imatrix", text(&old)]);
    let words = ["error[TW0517]", "old format, expected GGUF", "llama-imatrix --in-file", "-o imatrix.gguf"];
    refused(&mut command, 1, &words);
    assert!(!out.exists());
}
