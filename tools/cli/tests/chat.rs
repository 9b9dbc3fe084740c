//! `tracewright chat`, typed to through a pipe.

use std::fs;
use std::io::{Read as _, Write as _};
#[cfg(unix)]
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use serde_json::{Value, json};
use tracewright::generate::Tokenizer;

use crate::support::*;

const SIZES: [&str; 6] = ["--dtype", "f32", "--context", "512", "--chunk", "1"];

fn chat(model: &str, arguments: &[&str]) -> Command {
    let mut command = tracewright(&["chat", model]);
    command.args(SIZES).args(arguments).stdin(Stdio::piped());
    command
}

fn type_to(child: &mut Child, lines: &str) {
    child.stdin.as_mut().unwrap().write_all(lines.as_bytes()).unwrap();
}

/// A whole chat: everything is typed at once, and then Ctrl-D.
#[track_caller]
fn said(command: &mut Command, lines: &str) -> Ran {
    let mut child = spawn(command);
    type_to(&mut child, lines);
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let ran = Ran { code: output.status.code(), out: words(&output.stdout), err: words(&output.stderr) };
    assert!(!ran.err.contains("panicked"), "{}", ran.err);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    ran
}

#[test]
fn a_message_has_an_end() {
    let demo = demo();
    let mut child = spawn(&mut chat(text(&demo), &[]));
    let mut stdin = child.stdin.take().unwrap();
    // Lines that go on; whoever stops reading them closes the pipe.
    let line = "a".repeat(1 << 20) + "\\\n";
    let _ = (0..65).try_for_each(|_| stdin.write_all(line.as_bytes()));
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the message is too long, expected at most 67108864 bytes"), "{said}");
}

/// An image stays in the chat, and the next message computes it no more.
#[test]
fn images_come_with_messages() {
    let (sees, demo) = (fixture("gemma3-images"), demo());
    let image = |name: &str| root().join("tests/fixtures/images").join(name);
    let (first, second) = (image("alpha.png"), image("gray.png"));
    let (cache, folder) = (folder(), folder());
    let images = ["--image", text(&first), "-n", "6", "--temp", "0", "--cache", text(cache.path())];
    let lines = format!(
        "What is this?\nAgain?\n/image {}\n/image {}\n/image\nAnd this?\n/save {}\n",
        text(&second),
        text(&image("files.json")),
        text(&folder.path().join("chat.json"))
    );
    let ran = said(&mut chat(text(&sees), &images), &lines);
    let computed: Vec<&str> = ran.err.lines().filter(|line| line.starts_with("prompt ")).collect();
    assert_eq!(computed.len(), 3, "{}", ran.err);
    // As transformers counts them (`tests/oracle/gemma3_images.py`).
    assert!(computed[0].starts_with("prompt 51 tokens, 51 of them new"), "{}", ran.err);
    let new =
        |line: &str| line.split_once(" tokens, ").unwrap().1.split(' ').next().unwrap().parse::<usize>();
    assert!(new(computed[1]).unwrap() < 40 && new(computed[2]).unwrap() < 60, "{}", ran.err);
    for words in
        ["begins with 1 images", "error[TW0830]", "/image needs the name of a file", "wrote 6 messages"]
    {
        assert!(ran.err.contains(words), "`{words}` is not in\n{}", ran.err);
    }
    // The tower reads its tensors of the checkpoint.
    assert!(!ran.err.contains("left out"), "{}", ran.err);
    let saved: Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("chat.json")).unwrap()).unwrap();
    assert_eq!(
        saved[0]["content"],
        json!([{ "type": "image" }, { "type": "text", "text": "What is this?" }])
    );

    // A session has no images, and a model of texts reads none.
    let session = folder.path().join("session");
    let alone = ["-n", "2", "--cache", text(cache.path()), "--session", text(&session)];
    let ran = said(&mut chat(text(&sees), &alone), &format!("/image {}\nHello\n", text(&first)));
    assert!(ran.err.contains("a chat with `--session` takes no images") && session.exists(), "{ran:?}");
    refused(
        &mut chat(text(&demo), &["--image", text(&first)]),
        1,
        &["reads only text, and cannot read images"],
    );
    let ran = said(&mut chat(text(&demo), &["-n", "2"]), &format!("/image {}\nHello\n", text(&first)));
    assert!(ran.err.contains("the model reads only text") && !ran.out.is_empty(), "{ran:?}");
}

/// Every answer of a chat is compact JSON; with the flag it has whitespace.
#[test]
fn answers_to_a_schema_are_compact() {
    let (folder, demo) = (folder(), demo());
    let file = folder.path().join("schema.json");
    fs::write(&file, r#"{"type": "array", "items": {"enum": ["fox", "owl"]}, "minItems": 1, "maxItems": 3}"#)
        .unwrap();
    let arguments = ["-n", "60", "--temp", "0", "--json-schema", text(&file)];
    let ran = said(&mut chat(text(&demo), &arguments), "An animal?\nAnother one?\n");
    let answers: Vec<&str> = ran.out.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(answers.len(), 2, "{}", ran.out);
    for answer in answers {
        assert!(serde_json::from_str::<Vec<String>>(answer).is_ok(), "{answer}");
        assert!(!answer.contains(' '), "{answer}");
    }
    let spaced = said(chat(text(&demo), &arguments).arg("--whitespace-flexible"), "An animal?\n").out;
    assert!(spaced.starts_with("[\n") || spaced.starts_with("[ "), "{spaced}");
}

/// The answer of `generate` to these messages, without any earlier state.
fn afresh(model: &str, messages: &[Value]) -> String {
    afresh_with(model, messages, &[])
}

/// The same, with these options of the chat template.
fn afresh_with(model: &str, messages: &[Value], options: &[&str]) -> String {
    let folder = folder();
    let file = folder.path().join("messages.json");
    fs::write(&file, Value::from(messages.to_vec()).to_string()).unwrap();
    let prompt = succeed(bare(&["prompt", model, "--messages", text(&file)]).args(options)).out;
    let tokens = Tokenizer::load(demo()).unwrap().unwrap().encode_plain(&prompt).unwrap();
    let tokens: Vec<String> = tokens.iter().map(u32::to_string).collect();
    let mut command = tracewright(&["generate", model, "--tokens", &tokens.join(","), "-n", "60", "--json"]);
    let answer: Value = serde_json::from_str(&succeed(command.args(SIZES)).out).unwrap();
    answer["text"].as_str().unwrap().to_owned()
}

/// For each turn, the tokens of the chat, and how many of them were new.
fn read(err: &str) -> Vec<(usize, usize)> {
    let line = |line: &str| {
        let (whole, rest) = line.strip_prefix("prompt ")?.split_once(" tokens, ")?;
        Some((whole.parse().ok()?, rest.split_once(" of them new")?.0.parse().ok()?))
    };
    err.lines().filter_map(line).collect()
}

const FIRST: &str = "Tell me a story about a brave owl.";
const SECOND: &str = "Tell me another one.";

#[test]
fn a_chat_remembers_and_reads_only_what_is_new() {
    let (model, folder) = (demo(), folder());
    let model = text(&model);
    let file = folder.path().join("chat.json");
    let lines = format!("{FIRST}\n{SECOND}\n/save {}\n", text(&file));
    let ran = said(&mut chat(model, &["-n", "60", "--system", "Be short."]), &lines);
    let messages: Vec<Value> = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let roles: Vec<_> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
    for answer in [2, 4] {
        assert_eq!(messages[answer]["content"], afresh(model, &messages[..answer]));
    }
    let answers = [2, 4].map(|answer| messages[answer]["content"].as_str().unwrap());
    assert_eq!(ran.out, answers.map(|answer| format!("{answer}\n")).concat());
    let read = read(&ran.err);
    assert_eq!(read[0].0, read[0].1, "{}", ran.err);
    assert!(read[1].1 < 20 && read[1].0 > read[0].0 + 30, "{}", ran.err);
}

/// The template of the demo, behind a text that names tools and a variable.
#[test]
fn every_turn_sees_tools_and_variables() {
    let (model, folder) = (copied_demo(), folder());
    let config: Value =
        serde_json::from_str(&fs::read_to_string(model.path().join("tokenizer_config.json")).unwrap())
            .unwrap();
    let template = config["chat_template"].as_str().unwrap();
    let head = "{% if tools %}{{ tools[0].function.name }} {{ mood }}\n{% endif %}{%- for";
    let template = template.replacen("{%- for", head, 1);
    fs::write(model.path().join("chat_template.jinja"), &template).unwrap();
    let (tools, file) = (folder.path().join("tools.json"), folder.path().join("chat.json"));
    fs::write(&tools, r#"[{"type": "function", "function": {"name": "An owl"}}]"#).unwrap();
    let options = ["--tools", text(&tools), "--template-var", "mood=\"was brave.\""];
    let model = text(model.path());
    let lines = format!("{FIRST}\n{SECOND}\n/save {}\n", text(&file));
    let arguments = [&["-n", "40"], &options[..]].concat();
    said(&mut chat(model, &arguments), &lines);
    let messages: Vec<Value> = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    for answer in [1, 3] {
        let answered = messages[answer]["content"].as_str().unwrap();
        let fresh = afresh_with(model, &messages[..answer], &options);
        assert!(!answered.is_empty() && fresh.starts_with(answered), "{answered}\n{fresh}");
    }
    let prompt = succeed(bare(&["prompt", model, "--messages", text(&file)]).args(options)).out;
    assert!(prompt.contains("An owl was brave.\n"), "{prompt}");
}

/// A template that writes old answers anew: what the network saw of them is not what it would see now.
#[test]
fn a_template_that_rewrites_the_past_is_read_from_where_it_differs() {
    let folder = folder();
    for entry in fs::read_dir(demo()).unwrap().flatten() {
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let template = "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n\
                    {{ m.content if m.role == 'user' else 'A story.' }}<|eot_id|>{% endfor %}\
                    {% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}";
    let config = folder.path().join("tokenizer_config.json");
    let mut keys: Value = serde_json::from_str(&fs::read_to_string(&config).unwrap()).unwrap();
    keys["chat_template"] = template.into();
    fs::write(&config, keys.to_string()).unwrap();
    let model = text(folder.path());
    let ran = said(&mut chat(model, &["-n", "60"]), &format!("{FIRST}\n{SECOND}\n"));
    let user = |words: &str| json!({"role": "user", "content": words});
    let old = json!({"role": "assistant", "content": "whatever it was"});
    let first = afresh(model, &[user(FIRST)]);
    let second = afresh(model, &[user(FIRST), old, user(SECOND)]);
    assert_eq!(ran.out, format!("{first}\n{second}\n"));
    let read = read(&ran.err);
    // The first message is not read again; what the template makes of the answer is.
    assert!(read[1].1 < read[1].0 && read[1].0 < read[0].0 + 40, "{}", ran.err);
}

#[test]
fn commands_do_what_help_says() {
    let (model, folder) = (copied_demo(), folder());
    let model = text(model.path());
    let file = folder.path().join("chat.json");
    let lines = format!(
        "/help\n\n/nothing\n{FIRST}\n/reset\n/system Be short.\n//odd \\\nand long\n/save {}\n/save\n\
         /save {model}/config.json\n/exit\nnever answered\n",
        text(&file)
    );
    let ran = said(&mut chat(model, &["-n", "5"]), &lines);
    for words in ["/system TEXT", "no command `/nothing`", "a new chat", "wrote 3 messages", "needs the name"]
    {
        assert!(ran.err.contains(words), "`{words}` is not in\n{}", ran.err);
    }
    assert_eq!(
        ran.err.matches("error[TW0008]: ").count(),
        1,
        "no file of the model is replaced\n{}",
        ran.err
    );
    assert_eq!(ran.err.matches("the answer is cut: `-n N`").count(), 2, "{}", ran.err);
    let messages: Vec<Value> = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(messages[0], json!({"role": "system", "content": "Be short."}));
    assert_eq!(messages[1], json!({"role": "user", "content": "/odd \nand long"}));
    assert_eq!(messages[2]["content"], afresh_prefix(model, &messages[..2], &ran.out));
}

/// The last answer, if it is the begin of what `generate` answers.
#[track_caller]
fn afresh_prefix(model: &str, messages: &[Value], out: &str) -> String {
    let whole = afresh(model, messages);
    let last = out.trim_end_matches('\n').lines().last().unwrap();
    assert!(whole.starts_with(last), "{last}: {whole}");
    last.to_owned()
}

#[test]
fn a_full_context_is_said_and_the_chat_goes_on() {
    let model = demo();
    let mut command = tracewright(&["chat", text(&model), "--context", "64", "--chunk", "1"]);
    let long = "a brave owl and a fox ".repeat(60);
    let ran = said(command.stdin(Stdio::piped()), &format!("{long}\n{FIRST}\n"));
    assert!(ran.err.contains("expected at most 64, the `--context`; /reset begins a new chat; `--context N` takes more, up to 1024"), "{}", ran.err);
    assert_eq!(read(&ran.err).len(), 1, "{}", ran.err);
    assert!(ran.err.contains("the context of 64 tokens is full: /reset") && ran.out.len() > 50, "{ran:?}");
}

#[test]
#[cfg(unix)]
fn ctrl_c_stops_an_answer_and_not_the_chat() {
    let folder = folder();
    let grammar = folder.path().join("grammar.lark");
    // An answer that fills the context.
    fs::write(&grammar, "start: /[a-z ]{2000}/").unwrap();
    let mut child = spawn(&mut chat(text(&demo()), &["--grammar", text(&grammar)]));
    type_to(&mut child, "Go on.\n");
    let mut out = child.stdout.take().unwrap();
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok(count @ 1..) = out.read(&mut bytes) {
            let _ = send.send(bytes[..count].to_vec());
        }
    });
    let patience = std::time::Duration::from_secs(120);
    receive.recv_timeout(patience).expect("an answer begins");
    interrupt(&child);
    type_to(&mut child, "Once more.\n/exit\n");
    let ended = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{err}");
    assert!(err.contains("stopped; Ctrl-D ends the chat"), "{err}");
    assert_eq!(read(&err).len(), 2, "{err}");
}

/// A model that names no token at which an answer ends is found out before the first one has no end.
#[test]
fn an_answer_without_an_end_is_announced() {
    let folder = folder();
    for entry in fs::read_dir(demo()).unwrap().flatten() {
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let mute = |name: &str| {
        let path = folder.path().join(name);
        let mut keys: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        keys.as_object_mut().unwrap().remove("eos_token_id");
        fs::write(&path, keys.to_string()).unwrap();
    };
    let words = "the model has no token that ends an answer";
    let named = said(&mut chat(text(folder.path()), &["-n", "3"]), "");
    assert!(!named.err.contains(words), "{}", named.err);
    mute("config.json");
    mute("generation_config.json");
    let unnamed = said(&mut chat(text(folder.path()), &["-n", "3"]), "");
    assert!(unnamed.err.contains(words), "{}", unnamed.err);
}

#[test]
fn what_cannot_chat_is_refused() {
    let model = fixture("llama-untied");
    refused(&mut chat(text(&model), &[]), 2, &["no tokenizer.json"]);
    let folder = folder();
    for entry in fs::read_dir(demo()).unwrap().flatten() {
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let config = folder.path().join("tokenizer_config.json");
    let mut keys: Value = serde_json::from_str(&fs::read_to_string(&config).unwrap()).unwrap();
    keys.as_object_mut().unwrap().remove("chat_template");
    fs::write(&config, keys.to_string()).unwrap();
    refused(&mut chat(text(folder.path()), &[]), 1, &["has no chat template"]);
    let bad = folder.path().join("messages.json");
    fs::write(&bad, "{").unwrap();
    refused(
        &mut bare(&["prompt", text(&demo()), "--messages", text(&bad)]),
        1,
        &[text(&bad), "list of messages"],
    );
}

/// The history of a terminal is there at the next start, in a file that only its owner can read. Lines from
/// stdin are not kept.
#[test]
#[cfg(unix)]
fn a_terminal_remembers_for_its_owner_alone() {
    use std::fs::File;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::PermissionsExt as _;

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    let (model, home) = (demo(), folder());
    let file = home.path().join("tracewright/chat-history");
    let command = |more: &[&str]| {
        let mut command = chat(text(&model), &[&["-n", "5"], more].concat());
        command.env("XDG_STATE_HOME", home.path()).env("HOME", home.path()).env("TERM", "xterm");
        command
    };
    // What a chat at a terminal says on stderr, to which each of these is typed when it asks for it.
    let type_at = |more: &[&str], typed: &[&[u8]]| {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let theirs = || {
            let path = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
            File::options().read(true).write(true).open(path).unwrap()
        };
        let mut command = command(more);
        let mut child = command.stdin(theirs()).stdout(theirs()).stderr(Stdio::piped()).spawn().unwrap();
        // So that nobody but the chat holds the terminal.
        drop(command);
        let mut ours = File::from(ours);
        let mut shown = ours.try_clone().unwrap();
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 1024];
            // When the other side is closed, Linux gives an error.
            while let Ok(count @ 1..) = shown.read(&mut bytes) {
                let _ = send.send(bytes[..count].to_vec());
            }
        });
        for keys in typed {
            let mut seen = Vec::new();
            while !seen.windows(2).any(|two| two == b"> ") {
                let patience = std::time::Duration::from_secs(120);
                match receive.recv_timeout(patience) {
                    Ok(more) => seen.extend(more),
                    Err(_) => {
                        let _ = child.kill();
                        panic!("no prompt: {:?}", String::from_utf8_lossy(&seen));
                    }
                }
            }
            ours.write_all(keys).unwrap();
        }
        let ended = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(0), "{err}");
        err
    };
    let kept = || fs::read_to_string(&file).unwrap();
    assert_eq!(read(&type_at(&[], &[b"Tell me a story.\r", b"/exit\r"])).len(), 1);
    assert_eq!(kept().lines().skip(1).collect::<Vec<_>>(), ["Tell me a story.", "/exit"]);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    // Up twice is the message of the chat before.
    assert_eq!(read(&type_at(&[], &[b"\x1b[A\x1b[A\r", b"/exit\r"])).len(), 1);
    assert_eq!(kept().lines().filter(|line| *line == "Tell me a story.").count(), 2, "{}", kept());
    let before = kept();
    type_at(&["--no-history"], &[b"A secret.\r", b"/exit\r"]);
    said(&mut command(&[]), "Another secret.\n/exit\n");
    assert_eq!(kept(), before);
}
