//! Parses function calls that the limit of new tokens cut. The arguments of the last call are the text so far.

use serde_json::{Deserializer, Value, json};

use super::calls::{RawCall, function, is_known, is_of_word, json_calls, mistral, parameter_type, typed};

/// The keys of an incomplete call.
#[derive(Default)]
struct CutCall<'t> {
    name: Option<String>,
    /// The beginning of a name that is not complete.
    begun: &'t str,
    arguments: &'t str,
}

/// Whether a text begins with JSON that can become a call of a known function.
pub fn begins_call(text: &str, tools: &[Value]) -> bool {
    let found = parts(text);
    let last = found.1.unwrap_or_default();
    let may =
        |tool: &Value| tool["function"]["name"].as_str().is_some_and(|name| name.starts_with(last.begun));
    match (&last.name, json_calls(found.0, tools).last()) {
        (Some(name), _) => is_known(tools, name),
        (None, Some(call)) => is_known(tools, &call.name),
        (None, None) => tools.iter().any(may),
    }
}

/// Parses calls in JSON. The word of a Markdown block may precede them.
pub fn cut_json(text: &str, tools: &[Value]) -> Vec<RawCall> {
    let text = text.trim_start_matches(is_of_word);
    let (complete, cut) = parts(text);
    let mut calls = json_calls(complete, tools);
    if let Some(CutCall { name: Some(name), arguments, .. }) = cut {
        calls.push(RawCall { name, arguments: arguments.trim_end().to_owned() });
    }
    calls
}

/// Separates complete values from the incomplete object at the end.
fn parts(text: &str) -> (&str, Option<CutCall<'_>>) {
    let text = text.trim_start();
    let text = text.strip_prefix('[').unwrap_or(text);
    let mut at = 0;
    loop {
        let rest = &text[at..];
        let skipped =
            rest.len() - rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',' || c == ';').len();
        let rest = &rest[skipped..];
        if rest.is_empty() {
            return (text, None);
        }
        match length(rest) {
            Some(length) => at += skipped + length,
            None => return (&text[..at], Some(object(rest))),
        }
    }
}

/// Returns the length of the complete JSON value at the start of a text.
fn length(text: &str) -> Option<usize> {
    let mut values = Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
    values.next()?.ok()?;
    Some(values.byte_offset())
}

/// Reads the keys of an incomplete object.
fn object(text: &str) -> CutCall<'_> {
    let mut call = CutCall::default();
    let mut rest = text.strip_prefix('{').unwrap_or_default().trim_start();
    while let Some(size) = length(rest).filter(|_| rest.starts_with('"')) {
        let key = serde_json::from_str::<String>(&rest[..size]).unwrap_or_default();
        let Some(value) = rest[size..].trim_start().strip_prefix(':').map(str::trim_start) else { break };
        let end = length(value).unwrap_or(value.len());
        let is_whole = length(value).is_some();
        match key.as_str() {
            "name" if is_whole => call.name = serde_json::from_str(&value[..end]).ok(),
            "name" => call.begun = value.strip_prefix('"').unwrap_or_default(),
            "arguments" | "parameters" => call.arguments = &value[..end],
            "function" if value.starts_with('{') => {
                let inner = object(value);
                call = CutCall { name: inner.name.or(call.name), ..inner };
            }
            "function" if is_whole => call.name = serde_json::from_str(&value[..end]).ok(),
            _ => {}
        }
        rest = value[end..].trim_start().trim_start_matches(',').trim_start();
    }
    call
}

pub fn cut_tagged(text: &str, tools: &[Value]) -> Vec<RawCall> {
    let text = text.trim_start().trim_start_matches("```");
    match text.strip_prefix("<function=") {
        Some(inner) => cut_function(inner, tools),
        None => cut_json(text, tools),
    }
}

/// Parses `NAME>` and the arguments as JSON, or as parameters between tags.
pub fn cut_function(text: &str, tools: &[Value]) -> Vec<RawCall> {
    let Some((name, body)) = text.split_once('>') else { return Vec::new() };
    let (name, body) = (name.trim().to_owned(), body.trim_start());
    if body.starts_with('{') {
        return vec![RawCall { name, arguments: body.trim_end().to_owned() }];
    }
    let whole = body.rfind("</parameter>").map_or(0, |at| at + "</parameter>".len());
    let complete = function(&format!("{name}>{}", &body[..whole]), tools).pop();
    let mut arguments = complete
        .filter(|_| whole > 0)
        .map_or("{".to_owned(), |call| call.arguments.strip_suffix('}').unwrap_or_default().to_owned());
    let begun = body[whole..].split_once("<parameter=").and_then(|(_, rest)| rest.split_once('>'));
    if let Some((key, value)) = begun {
        let value = value.strip_prefix('\n').unwrap_or(value);
        let text = if parameter_type(tools, &name, key.trim()) == "string" {
            json!(value).to_string().trim_end_matches('"').to_owned()
        } else {
            typed(value, &Value::Null).to_string()
        };
        let comma = if whole > 0 { "," } else { "" };
        arguments += &format!("{comma}{}:{text}", json!(key.trim()));
    }
    vec![RawCall { name, arguments }]
}

pub fn cut_mistral(text: &str, tools: &[Value]) -> Vec<RawCall> {
    if text.trim_start().starts_with('[') {
        return cut_json(text, tools);
    }
    let (before, last) = text.rsplit_once("[TOOL_CALLS]").unwrap_or(("", text));
    let mut calls = if before.is_empty() { Vec::new() } else { mistral(before, tools) };
    let end = last.find(['[', '{']).unwrap_or(last.len());
    let (name, rest) = last.split_at(end);
    if !rest.is_empty() && !name.trim().is_empty() {
        let arguments = rest.find('{').map_or("", |at| &rest[at..]).trim_end().to_owned();
        calls.push(RawCall { name: name.trim().to_owned(), arguments });
    }
    calls
}

/// Parses `call:NAME{`, whose arguments are not JSON, so an incomplete call has none.
pub fn cut_gemma(text: &str, _: &[Value]) -> Vec<RawCall> {
    let name = text.trim_start().strip_prefix("call:").and_then(|text| text.split_once('{'));
    name.map(|(name, _)| RawCall { name: name.trim().to_owned(), arguments: String::new() })
        .into_iter()
        .collect()
}
