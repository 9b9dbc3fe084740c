//! Parses the formats in which models write function calls.

use serde_json::{Deserializer, Map, Value, json};

use crate::sampling::random;

/// A function call that has no id yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawCall {
    pub name: String,
    /// The arguments of the function call, as JSON.
    pub arguments: String,
}

/// Returns an id for a function call. The id consists of nine letters and digits, as Mistral's
/// templates require.
pub fn id() -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut rest = random();
    let mut digit = || {
        let digit = DIGITS[(rest % 36) as usize];
        rest /= 36;
        char::from(digit)
    };
    (0..9).map(|_| digit()).collect()
}

/// Whether one of the tools has the name `name`.
pub fn is_known(tools: &[Value], name: &str) -> bool {
    tools.iter().any(|tool| tool["function"]["name"] == name)
}

/// Whether a text begins like the JSON of a function call: an object whose first key is, for
/// example, `name` or `arguments`. Returns `None` if the text is too short for a decision.
pub fn looks_like_calls(text: &str) -> Option<bool> {
    const KEYS: [&str; 5] = ["\"name\"", "\"type\"", "\"function\"", "\"arguments\"", "\"parameters\""];
    let rest = text.strip_prefix('[').unwrap_or(text).trim_start();
    let Some(rest) = rest.strip_prefix('{').map(str::trim_start) else {
        return if rest.is_empty() { None } else { Some(false) };
    };
    match KEYS.iter().any(|key| rest.starts_with(key)) {
        true => Some(true),
        false if KEYS.iter().any(|key| key.starts_with(rest)) => None,
        false => Some(false),
    }
}

/// Parses function calls in JSON: one object, several objects one after another, or a list of objects.
pub fn json_calls(text: &str, _: &[Value]) -> Vec<RawCall> {
    let mut calls = Vec::new();
    let text = files::with_exact_numbers(text.trim());
    let mut rest = &*text;
    while !rest.is_empty() {
        let mut values = Deserializer::from_str(rest).into_iter::<Value>();
        let Some(Ok(value)) = values.next() else { return Vec::new() };
        rest = rest[values.byte_offset()..].trim_start().trim_start_matches([';', ',']).trim_start();
        let list = match value {
            Value::Array(list) => list,
            one => vec![one],
        };
        for one in list {
            match json_call(&one) {
                Some(call) => calls.push(call),
                None => return Vec::new(),
            }
        }
    }
    calls
}

fn json_call(value: &Value) -> Option<RawCall> {
    let function = value.get("function").filter(|function| function.is_object()).unwrap_or(value);
    let name = function.get("name").or(function.get("function"))?.as_str().filter(|name| !name.is_empty())?;
    let arguments = ["arguments", "parameters"].iter().find_map(|key| function.get(*key));
    let arguments = match arguments {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::String(text)) if files::parse_exact::<Map<String, Value>>(text).is_ok() => text.clone(),
        Some(other) => files::exact_json(other),
    };
    Some(RawCall { name: name.to_owned(), arguments })
}

pub fn tagged(text: &str, tools: &[Value]) -> Vec<RawCall> {
    let text = unfenced(text.trim());
    match text.strip_prefix("<function=") {
        Some(inner) => function(inner.trim_end().trim_end_matches("</function>"), tools),
        None => json_calls(text, tools),
    }
}

/// Returns the text inside a Markdown block, or the text itself.
fn unfenced(text: &str) -> &str {
    let inside = text.strip_prefix("```").and_then(|text| text.strip_suffix("```"));
    inside.map_or(text, |inside| inside.trim_start_matches(is_of_word).trim())
}

/// Whether a character can be part of the word behind the marker of a Markdown block, such as `tool_call`.
pub fn is_of_word(character: char) -> bool {
    character.is_ascii_alphabetic() || character == '_'
}

/// Parses a function call that begins with `NAME>`, followed by the arguments. The arguments are
/// JSON, or parameters between XML-like tags.
pub fn function(text: &str, tools: &[Value]) -> Vec<RawCall> {
    let Some((name, body)) = text.split_once('>') else { return Vec::new() };
    let (name, body) = (name.trim(), body.trim());
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Vec::new();
    }
    if let Ok(arguments) = files::parse_exact::<Map<String, Value>>(body) {
        return vec![RawCall { name: name.to_owned(), arguments: files::exact_json(&arguments.into()) }];
    }
    let mut arguments = Map::new();
    let mut rest = body;
    while let Some((_, parameter)) = rest.split_once("<parameter=") {
        let Some((key, after)) = parameter.split_once('>') else { return Vec::new() };
        let (value, after) = after.split_once("</parameter>").unwrap_or((after, ""));
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        arguments.insert(key.trim().to_owned(), typed(value, &parameter_type(tools, name, key.trim())));
        rest = after;
    }
    if arguments.is_empty() && !body.is_empty() {
        Vec::new()
    } else {
        vec![RawCall { name: name.to_owned(), arguments: files::exact_json(&arguments.into()) }]
    }
}

/// Returns the type that the tool's schema declares for a parameter.
pub fn parameter_type(tools: &[Value], name: &str, key: &str) -> Value {
    let tool = tools.iter().find(|tool| tool["function"]["name"] == name);
    tool.map_or(Value::Null, |tool| tool["function"]["parameters"]["properties"][key]["type"].clone())
}

/// Converts the text of a parameter to a value of the declared type.
pub fn typed(text: &str, declared: &Value) -> Value {
    if declared == "string" {
        json!(text)
    } else {
        files::parse_exact(text.trim()).unwrap_or_else(|_| json!(text))
    }
}

pub fn mistral(text: &str, tools: &[Value]) -> Vec<RawCall> {
    if text.trim_start().starts_with('[') {
        return json_calls(text, tools);
    }
    let mut calls = Vec::new();
    for part in text.split("[TOOL_CALLS]") {
        let Some((name, arguments)) = part.split_once('{') else { return Vec::new() };
        let name = name.split('[').next().unwrap_or_default().trim();
        let arguments = format!("{{{}", arguments.trim_end());
        let is_object = files::parse_exact::<Map<String, Value>>(&arguments).is_ok();
        if name.is_empty() || name.contains(char::is_whitespace) || !is_object {
            return Vec::new();
        }
        calls.push(RawCall { name: name.to_owned(), arguments });
    }
    calls
}

pub fn gemma(text: &str, _: &[Value]) -> Vec<RawCall> {
    let call = || {
        let text = text.trim().strip_prefix("call:")?;
        let (name, rest) = text.split_at(text.find('{')?);
        let mut rest = rest;
        let arguments = gemma_value(&mut rest, 0)?;
        let is_call = !name.trim().is_empty() && rest.trim().is_empty() && arguments.is_object();
        is_call.then(|| RawCall { name: name.trim().to_owned(), arguments: files::exact_json(&arguments) })
    };
    call().into_iter().collect()
}

/// Parses a value in the format of FunctionGemma: `<escape>text<escape>`, an object, a list, or a word.
fn gemma_value(rest: &mut &str, depth: usize) -> Option<Value> {
    const ESCAPE: &str = "<escape>";
    const DEEPEST: usize = 64;
    *rest = rest.trim_start();
    if depth > DEEPEST {
        return None;
    }
    if let Some(text) = rest.strip_prefix(ESCAPE) {
        let (text, after) = text.split_once(ESCAPE)?;
        *rest = after;
        return Some(json!(text));
    }
    let close = match rest.chars().next()? {
        '{' => '}',
        '[' => ']',
        _ => {
            let end = rest.find([',', '}', ']']).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            *rest = after;
            return Some(files::parse_exact(word.trim()).unwrap_or_else(|_| json!(word.trim())));
        }
    };
    *rest = &rest[1..];
    let (mut object, mut list) = (Map::new(), Vec::new());
    loop {
        *rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix(close) {
            *rest = after;
            return Some(if close == '}' { object.into() } else { list.into() });
        }
        if close == '}' {
            let (key, after) = rest.split_once(':')?;
            *rest = after;
            object.insert(key.trim().trim_matches('"').to_owned(), gemma_value(rest, depth + 1)?);
        } else {
            list.push(gemma_value(rest, depth + 1)?);
        }
        *rest = rest.trim_start();
        *rest = rest.strip_prefix(',').unwrap_or(rest);
        if rest.is_empty() {
            return None;
        }
    }
}
