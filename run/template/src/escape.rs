//! Escapes texts for HTML, and marks strings as `safe`.

use files::limits;
use minijinja::value::Tuple;
use minijinja::{Error, Value};

use crate::{collection_methods, invalid, repr_json};

/// Returns a string that is marked as `safe` if the string `model` is.
pub fn like(model: &Value, text: impl Into<String>) -> Value {
    if model.is_safe() { Value::from_safe_string(text.into()) } else { Value::from(text.into()) }
}

/// Marks the strings of a result as `safe` if the string `model` is. A result is a string, a list of
/// strings or a tuple of strings.
pub fn all_like(model: &Value, made: Value) -> Result<Value, Error> {
    if !model.is_safe() {
        return Ok(made);
    }
    if let Some(text) = made.as_str() {
        return Ok(Value::from_safe_string(text.to_owned()));
    }
    let items: Vec<Value> =
        made.try_iter()?.map(|item| like(model, item.as_str().unwrap_or_default())).collect();
    Ok(if collection_methods::is_tuple(&made) { Tuple::from(items).into() } else { items.into() })
}

/// The text of a value, escaped unless the value is marked as `safe`.
pub fn escaped(value: &Value) -> Result<String, Error> {
    let text = repr_json::str(value)?;
    if value.is_safe() { Ok(text.into_owned()) } else { escape_text(&text) }
}

/// Escapes the characters that have a meaning in HTML.
pub fn escape_text(text: &str) -> Result<String, Error> {
    let escape = |c: char| match c {
        '&' => Some("&amp;"),
        '<' => Some("&lt;"),
        '>' => Some("&gt;"),
        '\'' => Some("&#39;"),
        '"' => Some("&#34;"),
        _ => None,
    };
    let more: usize = text.chars().filter_map(escape).map(|escaped| escaped.len() - 1).sum();
    if more > 0 && (text.len() + more) as u64 > limits::PROMPT {
        return Err(invalid("a text becomes too long where a part is replaced"));
    }
    let mut out = String::with_capacity(text.len() + more);
    for c in text.chars() {
        match escape(c) {
            Some(escaped) => out.push_str(escaped),
            None => out.push(c),
        }
    }
    Ok(out)
}
