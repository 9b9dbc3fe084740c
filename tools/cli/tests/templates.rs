//! Inputs of a chat template besides the messages: `--tools`, `--documents`, `--thinking`, `--template-var`.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;
use tracewright::generate::Tokenizer;

use crate::support::*;

/// Reads everything that an option may set.
const ALL: &str = "{{ messages|map(attribute='content')|join('/') }}|{{ tools|tojson }}|{{ documents|tojson }}\
                   |{{ enable_thinking }}|{{ effort }}|{{ add_generation_prompt }}";

fn with_template(template: &str) -> TempDir {
    let model = copied_demo();
    fs::write(model.path().join("chat_template.jinja"), template).unwrap();
    model
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}])
}

#[test]
fn a_template_sees_what_the_options_give() {
    let model = with_template(ALL);
    let path = |name: &str, content: &Value| {
        let path = model.path().join(name);
        fs::write(&path, content.to_string()).unwrap();
        text(&path).to_owned()
    };
    let (tools, documents) = (tools(), json!([{"title": "One", "text": "é"}]));
    let tools_file = path("tools.json", &tools);
    let documents_file = path("documents.json", &documents);
    let messages = path("messages.json", &json!([{"role": "user", "content": "b"}]));
    let python = |value: &Value| value.to_string().replace(':', ": ").replace(',', ", ");
    let (tools, documents) = (python(&tools), python(&documents));
    let cases: &[(&[&str], &str)] = &[
        (&["--chat=a"], "a|null|null|||True"),
        (&["--chat=a", "--tools", &tools_file], &format!("a|{tools}|null|||True")),
        (&["--messages", &messages, "--documents", &documents_file], &format!("b|null|{documents}|||True")),
        (&["--chat=a", "--thinking=on"], "a|null|null|True||True"),
        (&["--chat=a", "--system=s", "--thinking", "off"], "s/a|null|null|False||True"),
        (&["--chat=a", "--template-var", "enable_thinking=null"], "a|null|null|None||True"),
        (
            &["--chat=a", "--template-var", "effort=\"l=w\"", "--template-var", "enable_thinking=[1, 2.0]"],
            "a|null|null|[1, 2.0]|l=w|True",
        ),
        (
            &["--chat=a", "--tools", &tools_file, "--documents", &documents_file, "--thinking=on"],
            &format!("a|{tools}|{documents}|True||True"),
        ),
    ];
    for (arguments, expected) in cases {
        let said = succeed(bare(&["prompt", text(model.path())]).args(*arguments)).out;
        assert_eq!(said, *expected, "{arguments:?}");
    }
    let mut command = tracewright(&["generate", text(model.path()), "--chat=a", "--tools", &tools_file]);
    let said = succeed(command.args(["--thinking=off", "--json", "-n", "1", "--dtype", "f32"])).out;
    let said: Value = serde_json::from_str(&said).unwrap();
    let prompt = format!("a|{tools}|null|False||True");
    let tokens = Tokenizer::load(model.path()).unwrap().unwrap().encode_plain(&prompt).unwrap();
    assert_eq!(said["prompt_tokens"], json!(tokens));
}

/// The template's numbers are those of Python's `json` module, wherever they come from.
#[test]
fn numbers_keep_their_texts() {
    let list = "[53.630839129292724, 123456789012345678901234567890, -0, -0.0, 1e16, 1E400, 1e-7, 18446744073709551615]";
    let python = "[53.630839129292724, 123456789012345678901234567890, 0, -0.0, 1e+16, Infinity, 1e-07, 18446744073709551615]";
    let model = with_template(
        "{{ x|tojson }}{{ tools[0].function.x|tojson }}{{ documents[0].x|tojson }}{{ messages[0].x|tojson }}",
    );
    let path = |name: &str, content: &str| {
        let path = model.path().join(name);
        fs::write(&path, content).unwrap();
        text(&path).to_owned()
    };
    let tools =
        path("tools.json", &format!(r#"[{{"type": "function", "function": {{"name": "f", "x": {list}}}}}]"#));
    let documents = path("documents.json", &format!(r#"[{{"x": {list}}}]"#));
    let messages = path("messages.json", &format!(r#"[{{"role": "user", "content": "", "x": {list}}}]"#));
    let variable = format!("x={list}");
    let mut command = bare(&["prompt", text(model.path()), "--messages", &messages]);
    command.args(["--tools", &tools, "--documents", &documents, "--template-var", &variable]);
    assert_eq!(succeed(&mut command).out, python.repeat(4));
}

/// An option without effect is an error, because the user expects an effect.
#[test]
fn an_option_that_the_template_does_not_use_is_refused() {
    let model =
        with_template("{{ bos_token }}{{ messages[0].content }}{{ thinking }}{{ effort }}{{ x.tools }}");
    let (tools_file, documents) = (model.path().join("tools.json"), model.path().join("documents.json"));
    fs::write(&tools_file, tools().to_string()).unwrap();
    fs::write(&documents, "[{}]").unwrap();
    let cases: &[(&[&str], &str, &str)] = &[
        (&["--thinking", "on"], "--thinking", "enable_thinking"),
        (&["--tools", text(&tools_file)], "--tools", "tools"),
        (&["--documents", text(&documents)], "--documents", "documents"),
        (&["--template-var", "efort=1"], "--template-var efort", "efort"),
        (&["--template-var", "effort=1", "--template-var", "content=1"], "--template-var content", "content"),
    ];
    for (arguments, option, name) in cases {
        let words = [
            "error[TW0821]",
            &format!("`{option}` has no effect: the chat template does not use `{name}`"),
            &format!("help: leave out `{option}`"),
            "help: the template uses `effort`, `thinking`, `x`",
        ];
        for command in ["prompt", "generate", "chat"] {
            let message: &[&str] = if command == "chat" { &[] } else { &["--chat", "a"] };
            refused(bare(&[command, text(model.path())]).args(message).args(*arguments), 1, &words);
        }
    }
    let mut command = bare(&["prompt", text(model.path()), "--chat=a", "--template-var", "thinking=true"]);
    succeed(command.args(["--template-var", "x={\"tools\": 1}"]));
}

#[test]
fn a_file_of_tools_or_documents_that_is_none() {
    let model = with_template(ALL);
    let file = model.path().join("list.json");
    let named = r#"{"type": "function", "function": {"name": "a"}}"#;
    let long = format!("[\"{}\"]", "a".repeat(10_000));
    let of_tools: &[(&str, &[&str])] = &[
        (
            "[",
            &[
                "is not a JSON list of tools",
                "EOF",
                r#"a tool is `{"type": "function", "function": {"name": …"#,
            ],
        ),
        ("{}", &["is not a JSON list of tools", "invalid type: map, expected a sequence"]),
        ("[]", &["the list in `", "list.json` is empty, expected at least one object"]),
        ("[3]", &["tool 0 in `", "list.json` is `3`, expected an object"]),
        (&long, &["tool 0 in `", "is `\"aaaaa", "…`, expected an object"]),
        (r#"[{"name": "a"}]"#, &["`type` of tool 0 in `", "is missing, expected `\"function\"`"]),
        (r#"[{"type": "mcp"}]"#, &["`type` of tool 0 in `", "is `\"mcp\"`, expected `\"function\"`"]),
        (
            r#"[{"type": "function", "name": "a"}]"#,
            &["`function` of tool 0 in `", "is missing, expected an object"],
        ),
        (
            &format!(r#"[{named}, {{"type": "function", "function": {{}}}}]"#),
            &["`function.name` of tool 1 in `", "is missing, expected the function's name"],
        ),
        (
            r#"[{"type": "function", "function": {"name": 5}}]"#,
            &["`function.name` of tool 0 in `", "is `5`, expected the function's name"],
        ),
        (r#"[{"type": "function", "function": {"name": ""}}]"#, &["is `\"\"`, expected the function's name"]),
    ];
    let of_documents: &[(&str, &[&str])] = &[
        ("", &["is not a JSON list of documents", "a document is an object"]),
        ("\"a\"", &["is not a JSON list of documents"]),
        ("[]", &["is empty, expected at least one object"]),
        ("[{}, null]", &["document 1 in `", "is `null`, expected an object"]),
    ];
    for (option, cases) in [("--tools", of_tools), ("--documents", of_documents)] {
        for (content, words) in cases {
            fs::write(&file, content).unwrap();
            let words = [&["error[TW0820]", "list.json"], *words].concat();
            refused(&mut bare(&["prompt", text(model.path()), "--chat=a", option, text(&file)]), 1, &words);
        }
        let missing = ["prompt", text(model.path()), "--chat=a", option, "no/such.json"];
        refused(&mut bare(&missing), 1, &["cannot read `no/such.json`"]);
    }
}

#[test]
fn options_of_a_template_that_cannot_be_read() {
    let demo = demo();
    let model = text(&demo);
    let cases: &[(&[&str], &[&str])] = &[
        (&["--thinking", "maybe"], &["invalid value 'maybe'", "on, off"]),
        (&["--template-var", "effort"], &["expected NAME=JSON"]),
        (
            &["--template-var", "effort=low"],
            &["the value is not JSON", "write a text in quotes, as `effort=\"low\"`"],
        ),
        (&["--template-var", "=1"], &["`` is not a variable name"]),
        (&["--template-var", "a.b=1"], &["`a.b` is not a variable name"]),
        (&["--template-var", "tools=[]"], &["`--tools FILE` sets `tools`"]),
        (&["--template-var", "documents=[]"], &["`--documents FILE` sets `documents`"]),
        (&["--template-var", "messages=[]"], &["`messages` is set by this program"]),
        (
            &["--template-var", "add_generation_prompt=true"],
            &["`add_generation_prompt` is set by this program"],
        ),
        (
            &["--template-var", "a=1", "--template-var", "a=1"],
            &["`--template-var` sets `a` twice; leave one out"],
        ),
        (
            &["--thinking=on", "--template-var", "enable_thinking=1"],
            &["`--thinking` and `--template-var` both set `enable_thinking`; leave one out"],
        ),
    ];
    for (arguments, words) in cases {
        refused(bare(&["prompt", model, "--chat=a"]).args(*arguments), 2, words);
    }
    for (option, value) in
        [("--tools", "f"), ("--documents", "f"), ("--thinking", "on"), ("--template-var", "a=1")]
    {
        let words = format!("`{option}` belongs to `--chat`; give the message to answer with it");
        refused(&mut bare(&["generate", model, "-p", "Once", option, value]), 2, &[&words]);
    }
}
