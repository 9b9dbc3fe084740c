//! Text that somebody else wrote: chat templates that take all there is, tokenizers that break, prompts without end.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::*;

/// A copy of the demo with another chat template.
fn with_template(template: &str) -> TempDir {
    let model = copied_demo();
    fs::write(model.path().join("chat_template.jinja"), template).unwrap();
    model
}

fn chat(model: &Path) -> Command {
    hurried(&bare(&["generate", text(model), "--chat", "Hello"]))
}

/// The command, and what it starts, with two seconds of a processor each: however many others compute, after them the
/// system ends it.
fn hurried(command: &Command) -> Command {
    let mut hurried = Command::new("sh");
    hurried.args(["-c", r#"ulimit -t 2; exec "$@""#, "sh"]).arg(command.get_program());
    hurried.args(command.get_args()).env_clear().stdin(Stdio::null());
    hurried
}

#[test]
fn a_template_that_takes_too_much_is_stopped() {
    let loops = |start: &str, step: &str, end: &str| {
        format!(
            "{{% set n = namespace(x={start}) %}}{{% for i in range(64) %}}{{% set n.x = {step} %}}{{% endfor %}}{{{{ {end} }}}}"
        )
    };
    let templates = [
        "{{ '%10000000000d' % 1 }}".to_owned(),
        "{{ 'a'|center(10000000000) }}".to_owned(),
        "{{ 'a\nb'|indent(10000000000) }}".to_owned(),
        "{{ messages|tojson(indent=10000000000) }}".to_owned(),
        "{{ strftime_now('%1000000000d') }}".to_owned(),
        loops("'aaaaaaaa'", "n.x ~ n.x", "n.x|length"),
        loops("[1]", "n.x + n.x", "n.x"),
        loops("[1]", "[n.x, n.x]", "n.x"),
        loops("[1]", "[n.x, n.x]", "n.x|tojson"),
        loops("[]", "n.x + ['a' * 99999999]", "n.x|join|length"),
        "{% set n = namespace() %}{% set n.x = n %}{{ n }}".to_owned(),
        "{% set n = namespace() %}{% set n.x = [n] %}{{ n.x|tojson }}".to_owned(),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        "{% for i in range(99999) %}{% for j in range(99999) %}aaaaaaaaaaaaaaaaaaaaaaaa{% endfor %}{% endfor %}"
            .to_owned(),
        format!("{{{{ 1{} }}}}", "+1".repeat(200_000)),
        format!("{{{{ {}1{} }}}}", "(".repeat(200_000), ")".repeat(200_000)),
        // What ends the process that renders it.
        "{% set n = namespace() %}{% set n.x = n %}{{ {n.x: 1} }}".to_owned(),
        "{% set n = namespace(x=[1]) %}{% set m = namespace(x=[1]) %}{% set n.x = [n] %}{% set m.x = [m] %}{{ n.x == m.x }}"
            .to_owned(),
    ];
    for template in templates {
        let model = with_template(&template);
        refused(&mut chat(model.path()), 1, &["the chat template"]);
        refused(
            &mut hurried(&bare(&["prompt", text(model.path()), "--chat=Hello"])),
            1,
            &["the chat template"],
        );
    }
    // Sixteen seconds, of which it has one.
    let model = with_template("{{ [2]*9.+ [2]*9. **8}}");
    let start = Instant::now();
    refused(
        &mut bare(&["prompt", text(model.path()), "--chat=Hello"]),
        1,
        &["the chat template was stopped"],
    );
    assert!(start.elapsed().as_secs() < 8, "{:?}", start.elapsed());
    // What is only long may be right; it ends as soon.
    for template in [
        format!("{{{{ {} }}}}", "'%s' % ".repeat(20_000) + "1"),
        "{{x".repeat(20_000),
        "{{1}}".repeat(20_000),
    ] {
        let model = with_template(&template);
        let ran = run(&mut hurried(&bare(&["prompt", text(model.path()), "--chat=Hello"])));
        assert!(matches!(ran.code, Some(0 | 1)), "{template:.60}: {ran:?}");
    }
    let model = with_template(&"{# much #}".repeat(200_000));
    refused(&mut chat(model.path()), 1, &["chat_template.jinja", "2000000 bytes", "at most 1048576"]);
    // Nor is it longer where it stands among other things.
    fs::remove_file(model.path().join("chat_template.jinja")).unwrap();
    let config = json!({"chat_template": "{# much #}".repeat(200_000)});
    fs::write(model.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    refused(
        &mut chat(model.path()),
        1,
        &["tokenizer_config.json` is not valid Jinja: it has 2000000 bytes, expected at most 1048576"],
    );
}

#[test]
fn what_a_template_says_is_said_once() {
    let model = with_template("{{ raise_exception('no <system> role') }}");
    refused(&mut chat(model.path()), 1, &["the chat template rejects this conversation: no <system> role"]);
    let model = with_template("{{ 1|nothing }}");
    refused(
        &mut chat(model.path()),
        1,
        &[
            "chat_template.jinja` failed at line 1, `{{ 1|nothing }}`: unknown filter: filter nothing is unknown",
        ],
    );
    let model = with_template("{{ messages[0].content }}|{{ messages[1].content }}\n");
    let said = succeed(&mut bare(&["prompt", text(model.path()), "--chat=-b", "--system=-a"]));
    assert_eq!(said.out, "-a|-b");
}

#[test]
fn a_tokenizer_that_the_library_does_not_expect() {
    let model = with_template("{{ messages[0].content }}");
    let path = model.path().join("tokenizer.json");
    let whole: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let replace = json!({"type": "Sequence", "normalizers":
        vec![json!({"type": "Replace", "pattern": {"String": "e"}, "content": "eeeeeeee"}); 20]});
    let replaces = |pattern: Value, content: &str| {
        let replace = json!({"type": "Replace", "pattern": pattern, "content": content});
        json!({"type": "Sequence", "normalizers": vec![replace; 7]})
    };
    let special = |ids: usize| {
        json!({"type": "TemplateProcessing", "pair": [],
            "single": [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"x": {"id": "x", "ids": vec![0; ids], "tokens": vec!["x"; ids]}}})
    };
    // A trie of 4 GiB that is not there; and one that is, in which `a` leads to a text of 99 characters.
    let charsmap = |map: &[u8]| {
        let map = BASE64.encode(map);
        json!({"type": "Precompiled", "precompiled_charsmap": map})
    };
    let mut map = (256_u32 * 4).to_le_bytes().to_vec();
    let unit = |at: u32| match at {
        0x61 => 0x61 | 1 << 8 | (0x61 ^ 0x80) << 10,
        _ => 0_u32,
    };
    map.extend((0..256).flat_map(|at| unit(at).to_le_bytes()));
    map.extend([b'b'; 99]);
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let cases = [
        ("pre_tokenizer", json!({"type": "FixedLength", "length": 0}), "cannot encode this text"),
        ("normalizer", replace.clone(), "times as long"),
        ("normalizer", replaces(json!({"String": "ee"}), "eee"), "128 times as long"),
        ("normalizer", replaces(json!({"String": ""}), "e"), "128 times as long"),
        ("normalizer", replaces(json!({"Regex": ""}), "e"), "128 times as long"),
        ("normalizer", replaces(json!({"Regex": "()"}), "e"), "128 times as long"),
        ("normalizer", replaces(json!({"Regex": "a\\K"}), "a"), "128 times as long"),
        // As older files spell it.
        ("normalizer", json!({"pattern": {"String": "e"}, "content": "e".repeat(65)}), "65 times as long"),
        ("normalizer", json!({"type": "Prepend", "prepend": "e".repeat(64)}), "65 times as long"),
        ("normalizer", charsmap(&[0xff, 0xff, 0xff, 0xff]), "a trie of 4294967295 bytes, expected at most 0"),
        ("normalizer", charsmap(&map), "99 times as long"),
        (
            "normalizer",
            json!({"type": "Sequence", "normalizers": vec![0; 1 << 20]}),
            "bytes of memory, expected at most",
        ),
        (
            "pre_tokenizer",
            json!({"type": "Sequence", "pretokenizers": vec![byte_level; 7]}),
            "128 times as long",
        ),
        (
            "pre_tokenizer",
            json!({"type": "Sequence", "pretokenizers": vec![metaspace; 4]}),
            "256 times as long",
        ),
        ("post_processor", special(1025), "puts 1025 tokens around a text, expected at most 1024"),
    ];
    for (key, value, words) in cases {
        let mut file = whole.clone();
        file[key] = value;
        fs::write(&path, file.to_string()).unwrap();
        refused(&mut chat(model.path()), 1, &[words]);
    }
    // Already a token that is added would become longer than any memory.
    let mut file = whole.clone();
    file["normalizer"] = replace;
    let id = file["model"]["vocab"].as_object().unwrap().len();
    let added = json!({"id": id, "content": "e", "special": false, "normalized": true,
        "single_word": false, "lstrip": false, "rstrip": false});
    file["added_tokens"].as_array_mut().unwrap().push(added);
    fs::write(&path, file.to_string()).unwrap();
    refused(&mut chat(model.path()), 1, &["times as long"]);
}

/// Tens of thousands of tokens that are added are no attack: nothing is made of them.
#[test]
fn a_tokenizer_with_many_tokens_of_its_own() {
    let model = with_template("{{ bos_token }}{{ messages[0].content }}");
    let token = json!({"content": "<custom>", "lstrip": false, "normalized": false, "rstrip": false,
        "single_word": false, "special": true});
    let tokens: serde_json::Map<String, Value> =
        (0..40_000).map(|id| (id.to_string(), token.clone())).collect();
    let config = json!({"added_tokens_decoder": tokens, "bos_token": "<s>"});
    fs::write(model.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    assert_eq!(succeed(&mut bare(&["prompt", text(model.path()), "--chat=b"])).out, "<s>b");
    let config = json!({"bos_token": vec![0; 1 << 20]});
    fs::write(model.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let words = ["tokenizer_config.json", "bytes of memory, expected at most 33554432"];
    refused(&mut bare(&["prompt", text(model.path()), "--chat=b"]), 1, &words);
}

#[cfg(unix)]
#[test]
fn ctrl_c_while_tokenizing() {
    let out = folder();
    let file = out.path().join("prompt.txt");
    fs::write(&file, "Once upon a time there was an owl. ".repeat(1_500_000)).unwrap();
    let child = spawn(&mut tracewright(&["generate", text(&demo()), "-f", text(&file), "-n", "1"]));
    std::thread::sleep(std::time::Duration::from_millis(500));
    let start = Instant::now();
    interrupt(&child);
    interrupted(child);
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
}

/// As long as no memory is, and empty: nothing of them is read.
#[test]
fn files_that_are_too_large_are_refused_before_they_are_read() {
    let (demo, out) = (demo(), folder());
    let file = out.path().join("large");
    fs::File::create(&file).unwrap().set_len(1 << 36).unwrap();
    let (demo, file) = (text(&demo), text(&file));
    for (arguments, most) in [
        (&["prompt", demo, "--messages", file][..], 64 << 20),
        (&["prompt", demo, "--chat", "a", "--tools", file], 64 << 20),
        (&["prompt", demo, "--chat", "a", "--documents", file], 64 << 20),
        (&["generate", demo, "-p", "a", "--grammar", file], 4 << 20),
        (&["generate", demo, "-p", "a", "--json-schema", file], 4 << 20),
        (&["generate", demo, "-p", "a", "--tuning", file], 16 << 20),
    ] {
        refused(&mut tracewright(arguments), 1, &["large", &format!("at most {most}")]);
    }
    for (name, most) in [
        ("tokenizer.json", 256 << 20),
        ("tokenizer_config.json", 16 << 20),
        ("generation_config.json", 16 << 20),
        ("config.json", 16 << 20),
    ] {
        let model = copied_demo();
        fs::File::create(model.path().join(name)).unwrap().set_len(1 << 36).unwrap();
        let mut command = tracewright(&["generate", text(model.path()), "--chat", "a", "-n", "1"]);
        refused(command.args(["--context", "64"]), 1, &[name, &format!("at most {most}")]);
    }
}

#[test]
fn a_prompt_that_is_too_long_is_refused_before_it_is_tokenized() {
    let out = folder();
    let file = out.path().join("prompt.txt");
    fs::File::create(&file).unwrap().set_len(1 << 36).unwrap();
    let mut command = bare(&["generate", text(&demo()), "-f", text(&file), "-n", "1"]);
    refused(&mut command, 1, &["prompt.txt", "at most 67108864"]);
    let mut command = bare(&["prompt", text(&demo()), "--messages", "-"]);
    refused(command.stdin(fs::File::open(&file).unwrap()), 1, &["`-`", "at most 67108864"]);
}
