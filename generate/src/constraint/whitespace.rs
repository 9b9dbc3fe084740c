//! Changes JSON schemas so that an answer contains no whitespace outside strings. By default
//! llguidance allows any amount of whitespace, and small models then write only whitespace.

use serde_json::{Value, json};

/// The key under which a schema contains options of llguidance.
const OPTIONS: &str = "x-guidance";

/// Forbids whitespace outside strings, unless the schema's own options set `whitespace_flexible` or
/// `whitespace_pattern`.
pub fn compact(schema: &mut Value) {
    if *schema == Value::Bool(true) {
        *schema = json!({});
    }
    let options = schema.as_object_mut().map(|schema| schema.entry(OPTIONS).or_insert_with(|| json!({})));
    if let Some(Value::Object(options)) = options {
        options.entry("whitespace_flexible").or_insert(Value::Bool(false));
    }
}

/// Changes every JSON schema inside a grammar to forbid whitespace. The result is `None` if the
/// grammar contains no schema.
pub fn compact_in_grammar(grammar: &str) -> Option<String> {
    let (mut written, mut rest, mut has_schema) = (String::new(), grammar, false);
    while let Some(at) = rest.find(['"', '/', '#', '%']) {
        let (before, from) = rest.split_at(at);
        written.push_str(before);
        let length = if from.starts_with('#') || from.starts_with("//") {
            from.find('\n').unwrap_or(from.len())
        } else if from.starts_with(['"', '/']) {
            delimited(from)?
        } else if let Some(after) = from.strip_prefix("%json") {
            let (mut schema, length) = json_prefix(after)?;
            compact(&mut schema);
            written.push_str(&format!("%json {schema}"));
            has_schema = true;
            rest = &after[length..];
            continue;
        } else if let Some(keyword) =
            ["%regex", "%llguidance"].into_iter().find(|word| from.starts_with(word))
        {
            keyword.len() + json_prefix(&from[keyword.len()..])?.1
        } else {
            1
        };
        written.push_str(&from[..length]);
        rest = &from[length..];
    }
    has_schema.then(|| written + rest)
}

/// Returns the length of the string or regular expression at the start of `text`, including the
/// delimiters.
fn delimited(text: &str) -> Option<usize> {
    let mark = text.chars().next()?;
    let mut characters = text.char_indices().skip(1);
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => drop(characters.next()),
            _ if character == mark => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Parses the JSON value at the start of `text`, and returns the value and the length of the
/// value's text.
fn json_prefix(text: &str) -> Option<(Value, usize)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter();
    let value = values.next()?.ok()?;
    Some((value, values.byte_offset()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_compact_unless_it_sets_whitespace_itself() {
        for (schema, expected) in [
            (json!(true), json!({"x-guidance": {"whitespace_flexible": false}})),
            (json!(false), json!(false)),
            (
                json!({"type": "null", "x-guidance": {"lenient": true}}),
                json!({"type": "null", "x-guidance": {"lenient": true, "whitespace_flexible": false}}),
            ),
            (
                json!({"x-guidance": {"whitespace_flexible": true}}),
                json!({"x-guidance": {"whitespace_flexible": true}}),
            ),
            // llguidance rejects this schema.
            (json!({"x-guidance": 1}), json!({"x-guidance": 1})),
        ] {
            let mut found = schema.clone();
            compact(&mut found);
            assert_eq!(found, expected, "{schema}");
        }
    }

    #[test]
    fn schemas_in_a_grammar_are_compact_and_all_else_is_as_it_was() {
        for (grammar, expected) in [
            (
                "start: \"a\" %json { \"type\": \"null\" } b // %json {}\nb: /%json {}\\//",
                Some(
                    "start: \"a\" %json {\"type\":\"null\",\"x-guidance\":{\"whitespace_flexible\":false}} b // %json {}\nb: /%json {}\\//",
                ),
            ),
            (
                "%llguidance {\"x\": \"%json {}\"}\nstart: %regex {\"any\": \"%json {}\"} %json{}",
                Some(
                    "%llguidance {\"x\": \"%json {}\"}\nstart: %regex {\"any\": \"%json {}\"} %json {\"x-guidance\":{\"whitespace_flexible\":false}}",
                ),
            ),
            ("start: \"\\\"%json {}\" # %json {}\n", None),
            ("start: é /[^\"]+/ \"%\" %lark { start: \"a\" }", None),
            // llguidance reports the errors in these texts.
            ("start: %json { \"type\": ", None),
            ("start: \"a", None),
        ] {
            assert_eq!(compact_in_grammar(grammar).as_deref(), expected, "{grammar}");
        }
    }
}
