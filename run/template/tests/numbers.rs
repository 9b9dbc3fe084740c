//! Checks that JSON numbers reach a template's output as Python prints them, in 20,000 random
//! documents and in the expressions that Jinja evaluated.
//!
//! `tests/oracle/values.py` writes the expected results of the expressions.

mod documents;

use std::fs;
use std::path::Path;

use documents::{Document, Random};
use serde_json::{Map, Value};
use tracewright_template::{Chat, ChatTemplate};

#[test]
fn random_documents_pass_through_messages_tools_and_variables() {
    let source = "{% for m in messages %}{{ m.content|default(none)|tojson }}\n{% endfor %}{% for t in tools %}{{ t.function|tojson }}\n{% endfor %}\
                  {% for x in variable %}{{ x|tojson }}\n{% endfor %}";
    let template = ChatTemplate::from_source(source, Map::new()).unwrap();
    let mut random = Random(62);
    for _ in 0..200 {
        let documents: Vec<Document> = (0..100).map(|_| Document::new(&mut random, 3)).collect();
        let list = |before: &str, after: &str| {
            let documents = documents.iter().map(|document| format!("{before}{}{after}", document.text));
            format!("[{}]", documents.collect::<Vec<_>>().join(","))
        };
        let variable: Value = files::parse_exact(&list("", "")).unwrap();
        // The texts of a schema and of a request to the process of the template pass through JSON again.
        let again: Value = files::parse_exact(&files::exact_json(&variable)).unwrap();
        assert_eq!(again, variable);
        let again: Value = serde_json::from_str(&variable.to_string()).unwrap();
        assert_eq!(again, variable);
        let chat = Chat {
            messages: files::parse_exact(&list("{\"role\":\"user\",\"content\":", "}")).unwrap(),
            tools: Some(files::parse_exact(&list("{\"function\":", "}")).unwrap()),
            variables: Map::from_iter([("variable".to_owned(), again)]),
            ..Chat::default()
        };
        let rendered = template.render(&chat).unwrap();
        let expected: Vec<&str> =
            (0..3).flat_map(|_| documents.iter().map(|document| &*document.dumped)).collect();
        let lines: Vec<&str> = rendered.lines().collect();
        assert_eq!(lines.len(), expected.len());
        for (i, (line, expected)) in lines.iter().zip(expected).enumerate() {
            assert_eq!(*line, expected, "{}", documents[i % 100].text);
        }
    }
}

/// Compares documents with the texts that Python wrote.
#[test]
fn documents_are_dumped_as_python_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/numbers.json");
    let cases: Vec<(String, String)> = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let texts: Vec<&str> = cases.iter().map(|(text, _)| &**text).collect();
    let list = format!("[{}]", texts.join(","));
    let chat = Chat {
        messages: vec![serde_json::json!({"role": "user"})],
        variables: Map::from_iter([("list".to_owned(), files::parse_exact(&list).unwrap())]),
        ..Chat::default()
    };
    let template =
        ChatTemplate::from_source("{% for x in list %}{{ x|tojson }}\n{% endfor %}", Map::new()).unwrap();
    let rendered = template.render(&chat).unwrap();
    assert_eq!(rendered.lines().count(), cases.len());
    for ((text, expected), line) in cases.iter().zip(rendered.lines()) {
        assert_eq!(line, expected, "{text}");
    }
}

/// Compares the results and errors of expressions with Jinja. The expressions combine numbers of
/// all kinds, and strings that are marked as `safe`, with operators, filters and methods.
#[test]
fn expressions_with_numbers_and_safe_strings_have_no_difference() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/values.json");
    let path = std::env::var_os("TRACEWRIGHT_VALUES").map_or(path, Into::into);
    let cases: Vec<(String, String, Option<String>)> =
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let mut differences = Vec::new();
    for (source, variables, expected) in &cases {
        let chat = Chat {
            messages: vec![serde_json::json!({"role": "user"})],
            variables: files::parse_exact(variables).unwrap(),
            ..Chat::default()
        };
        let rendered =
            ChatTemplate::from_source(source, Map::new()).and_then(|template| template.render(&chat));
        if rendered.as_deref().ok() != expected.as_deref() {
            differences.push(format!("{source} {variables}\n  Jinja: {expected:?}\n  ours: {rendered:?}"));
        }
    }
    let (count, total) = (differences.len(), cases.len());
    assert!(count == 0 && total > 0, "{count} of {total} expressions differ:\n{}", differences.join("\n"));
}
