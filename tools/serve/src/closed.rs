//! Closes the objects of schemas: a model writes only keys that the schema declares. An answer under a closed schema is
//! also valid under the schema itself, and small models would add keys without end.

use serde_json::{Map, Value, json};

/// Forbids undeclared keys in all objects that declare keys and do not set `additionalProperties`. If several parts of a
/// schema describe one object, none of them knows all keys, so the schema stays as it is. `opens` closes nothing.
pub fn closed(schema: &Value, opens: bool) -> Value {
    if opens || combines(schema) { schema.clone() } else { close(schema) }
}

/// Whether several parts of a schema can describe the same object.
fn combines(schema: &Value) -> bool {
    const MERGING: [&str; 7] =
        ["allOf", "if", "not", "dependentSchemas", "dependencies", "unevaluatedProperties", "$dynamicRef"];
    const DECLARING: [&str; 5] =
        ["properties", "required", "minProperties", "additionalProperties", "patternProperties"];
    match schema {
        Value::Array(list) => list.iter().any(combines),
        Value::Object(object) => {
            let has = |keys: &[&str]| keys.iter().any(|key| object.contains_key(*key));
            let inside = |(key, value): (&String, &Value)| match (key.as_str(), value) {
                ("const" | "enum" | "default" | "examples", _) => false,
                ("properties" | "$defs" | "definitions", Value::Object(named)) => {
                    named.values().any(combines)
                }
                (_, value) => combines(value),
            };
            has(&MERGING) || has(&DECLARING) && has(&["$ref", "anyOf", "oneOf"]) || object.iter().any(inside)
        }
        _ => false,
    }
}

fn close(schema: &Value) -> Value {
    let Value::Object(object) = schema else { return schema.clone() };
    let within = |(key, value): (&String, &Value)| {
        let value = match (key.as_str(), value) {
            ("properties" | "$defs" | "definitions", Value::Object(named)) => {
                named.iter().map(|(name, one)| (name.clone(), close(one))).collect()
            }
            ("anyOf" | "oneOf" | "prefixItems", Value::Array(list)) => list.iter().map(close).collect(),
            ("items" | "additionalProperties", one) => close(one),
            (_, other) => other.clone(),
        };
        (key.clone(), value)
    };
    let mut object: Map<String, Value> = object.iter().map(within).collect();
    let keys = object.get("properties").and_then(Value::as_object);
    let can_close = keys.is_some_and(|keys| {
        let required = object.get("required").and_then(Value::as_array).into_iter().flatten();
        let least = object.get("minProperties").and_then(Value::as_u64).unwrap_or_default();
        let is_open = ["additionalProperties", "patternProperties", "propertyNames"];
        required.into_iter().all(|name| name.as_str().is_some_and(|name| keys.contains_key(name)))
            && least <= keys.len() as u64
            && !is_open.iter().any(|key| object.contains_key(*key))
    });
    if can_close {
        object.insert("additionalProperties".to_owned(), json!(false));
    }
    object.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_objects_whose_keys_are_known_are_closed() {
        let check = |schema: Value, expected: &str| assert_eq!(closed(&schema, false).to_string(), expected);
        check(
            json!({ "properties": { "a": {} } }),
            r#"{"properties":{"a":{}},"additionalProperties":false}"#,
        );
        check(
            json!({ "items": { "anyOf": [{ "properties": {} }, { "type": "null" }] } }),
            r#"{"items":{"anyOf":[{"properties":{},"additionalProperties":false},{"type":"null"}]}}"#,
        );
        for open in [
            json!({ "type": "object" }),
            json!({ "properties": { "a": {} }, "additionalProperties": true }),
            json!({ "properties": { "a": {} }, "required": ["b"] }),
            json!({ "properties": { "a": {} }, "minProperties": 2 }),
            json!({ "allOf": [{ "properties": { "a": {} } }, { "properties": { "b": {} } }] }),
            json!({ "required": ["k"], "anyOf": [{ "properties": { "a": {} } }] }),
            json!({ "properties": { "a": { "if": { "properties": {} } } } }),
        ] {
            check(open.clone(), &open.to_string());
        }
        let schema = json!({ "properties": {} });
        assert_eq!(closed(&schema, true), schema);
    }
}
