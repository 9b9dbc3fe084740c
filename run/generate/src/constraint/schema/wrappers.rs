//! Finds the schema inside the request formats that contain one.

use serde_json::{Map, Value};

/// Returns the schema in a document such as `{"json_schema": {"name": …, "schema": …}}`, and its pointer.
pub fn unwrap(document: &Value) -> (&Value, String) {
    let (mut value, mut at) = (document, String::new());
    while let Some(key) = value.as_object().and_then(inner) {
        value = &value[key];
        at = format!("{at}/{key}");
    }
    (value, at)
}

/// Returns the key of the schema in a wrapper, or `None` if the object is a schema.
fn inner(object: &Map<String, Value>) -> Option<&'static str> {
    let is_schema = |key: &str| matches!(object.get(key), Some(Value::Object(_) | Value::Bool(_)));
    let is_wrapper = |key: &str| object.get(key).is_some_and(Value::is_object);
    let text = |key| object.get(key).and_then(Value::as_str);
    match text("type") {
        Some("json_schema") if is_wrapper("json_schema") => return Some("json_schema"),
        Some("json_schema") if is_schema("schema") => return Some("schema"),
        Some("function") if is_wrapper("function") => return Some("function"),
        Some("function") if is_schema("parameters") => return Some("parameters"),
        _ => {}
    }
    if super::keywords::has_known(object) {
        return None;
    }
    // Other properties than these belong to a sample of an answer, and not to a wrapper.
    const BESIDE: [&str; 8] =
        ["name", "title", "description", "strict", "schema", "parameters", "input_schema", "cache_control"];
    let is_closed = object.keys().all(|key| BESIDE.contains(&key.as_str()));
    let only = |key: &&str| object.len() == 1 && is_wrapper(key);
    let inner = |key: &&str| is_closed && is_schema(key);
    ["response_format", "text", "format", "json_schema"]
        .into_iter()
        .find(only)
        .or_else(|| ["schema", "parameters", "input_schema"].into_iter().find(inner))
}
