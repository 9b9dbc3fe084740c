//! Text that somebody else wrote: chat templates that take all there is, tokenizers that break, prompts without end.

use std::fs;
use std::path::Path;
use std::time::Instant;

use serde_json::json;
use tempfile::TempDir;

use crate::support::*;

/// A copy of the demo with another chat template.
fn with_template(template: &str) -> TempDir {
    let model = folder();
    for (path, _) in listing(&demo()) {
        fs::copy(&path, model.path().join(path.file_name().unwrap())).unwrap();
    }
    fs::write(model.path().join("chat_template.jinja"), template).unwrap();
    model
}

fn chat(model: &Path) -> std::process::Command {
    bare(&["generate", text(model), "--chat", "Hello"])
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
    ];
    for template in templates {
        let model = with_template(&template);
        let start = Instant::now();
        let ran = refused(&mut chat(model.path()), 1, &["the chat template"]);
        // On a machine with nothing else to do, two seconds.
        assert!(start.elapsed().as_secs() < 40, "{:.60}: {}", template, ran.err);
    }
    // What is only long may be right; it ends as soon.
    for template in [
        format!("{{{{ {} }}}}", "'%s' % ".repeat(20_000) + "1"),
        "{{x".repeat(200_000),
        "{{1}}".repeat(200_000),
    ] {
        let (model, start) = (with_template(&template), Instant::now());
        run(&mut bare(&["prompt", text(model.path()), "--chat=Hello"]));
        assert!(start.elapsed().as_secs() < 40, "{template:.60}");
    }
    let model = with_template(&"{# much #}".repeat(200_000));
    refused(&mut chat(model.path()), 1, &["chat_template.jinja", "2000000 bytes", "at most 1048576"]);
}

#[test]
fn what_a_template_says_is_said_once() {
    let model = with_template("{{ raise_exception('no <system> role') }}");
    refused(&mut chat(model.path()), 1, &["the chat template refuses this conversation: no <system> role"]);
    let model = with_template("{{ 1|nothing }}");
    refused(&mut chat(model.path()), 1, &["the chat template failed\n  because: ", "nothing"]);
    let model = with_template("{{ messages[0].content }}|{{ messages[1].content }}\n");
    let said = succeed(&mut bare(&["prompt", text(model.path()), "--chat=-b", "--system=-a"]));
    assert_eq!(said.out, "-a|-b");
}

#[test]
fn a_tokenizer_that_the_library_does_not_expect() {
    let model = with_template("{{ messages[0].content }}");
    let path = model.path().join("tokenizer.json");
    let whole: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let cases = [
        ("pre_tokenizer", json!({"type": "FixedLength", "length": 0}), "cannot encode this text"),
        (
            "normalizer",
            json!({"type": "Sequence", "normalizers":
                vec![json!({"type": "Replace", "pattern": {"String": "e"}, "content": "eeeeeeee"}); 20]}),
            "times as long",
        ),
    ];
    for (key, value, words) in cases {
        let mut file = whole.clone();
        file[key] = value;
        fs::write(&path, file.to_string()).unwrap();
        refused(&mut chat(model.path()), 1, &[words]);
    }
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

#[test]
fn a_prompt_that_is_too_long_is_refused_before_it_is_tokenized() {
    let out = folder();
    let file = out.path().join("prompt.txt");
    fs::File::create(&file).unwrap().set_len(1 << 36).unwrap();
    let mut command = bare(&["generate", text(&demo()), "-f", text(&file), "-n", "1"]);
    refused(&mut command, 1, &["prompt.txt", "at most 67108864"]);
}
