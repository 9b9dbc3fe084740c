//! [`NestedField`] describes a field of an object, and the objects inside this field.

use errors::{escaped, shortened};
use serde_json::{Map, Value, json};

use crate::failure::Failure;

/// A field of an object. The field can contain one object or a list of objects.
pub struct NestedField {
    pub name: &'static str,
    mark: FieldMark,
    pub objects: &'static [NestedObject],
}

enum FieldMark {
    Supported,
    /// The server accepts null and these values, written as JSON, because they change nothing.
    Refused(&'static [&'static str]),
    WithoutEffect,
}

/// The objects with one of the given types.
pub struct NestedObject {
    /// Values of the key `type`, where an empty text stands for no type. Without values, all other objects.
    kinds: &'static [&'static str],
    fields: ObjectMark,
}

enum ObjectMark {
    Supported(&'static [NestedField]),
    /// The endpoint's own code refuses objects of this type.
    Refused,
    WithoutEffect,
}

pub const fn read(name: &'static str) -> NestedField {
    within(name, &[])
}

pub const fn within(name: &'static str, objects: &'static [NestedObject]) -> NestedField {
    NestedField { name, mark: FieldMark::Supported, objects }
}

pub const fn refused(name: &'static str, accepted: &'static [&'static str]) -> NestedField {
    NestedField { name, mark: FieldMark::Refused(accepted), objects: &[] }
}

pub const fn unused(name: &'static str) -> NestedField {
    NestedField { name, mark: FieldMark::WithoutEffect, objects: &[] }
}

pub const fn object(kinds: &'static [&'static str], fields: &'static [NestedField]) -> NestedObject {
    NestedObject { kinds, fields: ObjectMark::Supported(fields) }
}

pub const fn other(kinds: &'static [&'static str]) -> NestedObject {
    NestedObject { kinds, fields: ObjectMark::Refused }
}

pub const fn skipped(kinds: &'static [&'static str]) -> NestedObject {
    NestedObject { kinds, fields: ObjectMark::WithoutEffect }
}

/// Rejects unknown fields in the objects of a value, and values of refused fields that would change the answer. `at` leads
/// to the value, as in `messages[0].content`.
pub fn check(value: &Value, objects: &[NestedObject], at: &str) -> Result<(), Failure> {
    match value {
        _ if objects.is_empty() => Ok(()),
        Value::Array(list) => {
            list.iter().enumerate().try_for_each(|(i, one)| check(one, objects, &format!("{at}[{i}]")))
        }
        Value::Object(keys) => {
            let kind = value["type"].as_str().unwrap_or_default();
            let is_of = |one: &&NestedObject| one.kinds.contains(&kind);
            let found = objects.iter().find(is_of).or(objects.iter().find(|one| one.kinds.is_empty()));
            let Some(NestedObject { fields: ObjectMark::Supported(fields), .. }) = found else {
                return Ok(());
            };
            keys.iter().try_for_each(|(name, value)| check_field(name, value, fields, at))
        }
        _ => Ok(()),
    }
}

fn check_field(name: &str, value: &Value, fields: &[NestedField], at: &str) -> Result<(), Failure> {
    let param = || format!("{at}.{}", escaped(&shortened(name.to_owned(), 60)));
    let Some(field) = fields.iter().find(|field| field.name == name) else {
        return Err(Failure::Unknown { param: param() });
    };
    match field.mark {
        FieldMark::Supported => check(value, field.objects, &param()),
        FieldMark::Refused(accepted) if !values(accepted).any(|one| one == *value) => {
            Err(Failure::Unsupported { param: param() })
        }
        FieldMark::Refused(_) | FieldMark::WithoutEffect => Ok(()),
    }
}

/// Returns null and the values that change nothing.
fn values(accepted: &[&str]) -> impl Iterator<Item = Value> {
    let written = accepted.iter().filter_map(|text| files::parse_exact(text).ok());
    [Value::Null].into_iter().chain(written)
}

/// Returns the JSON Schema of a value with these objects.
pub fn schema(objects: &[NestedObject]) -> Value {
    let known: Vec<&str> = objects.iter().flat_map(|one| one.kinds).copied().collect();
    let one_of: Vec<Value> = objects.iter().map(|one| of_object(one, &known)).collect();
    let plain = json!({ "type": ["string", "number", "boolean", "null"] });
    let mut item = one_of.clone();
    item.push(plain.clone());
    let list = json!({ "type": "array", "items": { "anyOf": item } });
    one_of.into_iter().chain([list, plain]).collect()
}

fn of_object(one: &NestedObject, known: &[&str]) -> Value {
    let value = |kind: &&str| if kind.is_empty() { Value::Null } else { json!(kind) };
    let values_of = |kinds: &[&str]| kinds.iter().map(value).collect::<Value>();
    let kind = if one.kinds.is_empty() {
        json!({ "not": { "enum": values_of(known) } })
    } else {
        json!({ "enum": values_of(one.kinds) })
    };
    let has_type = !one.kinds.is_empty() && !one.kinds.contains(&"");
    let required = if has_type { json!(["type"]) } else { json!([]) };
    let whole = |mark: &str| json!({ "type": "object", "properties": { "type": kind }, "required": required, "x-support": mark });
    let fields = match one.fields {
        ObjectMark::Supported(fields) => fields,
        ObjectMark::Refused => return whole("refused"),
        ObjectMark::WithoutEffect => return whole("without effect"),
    };
    let property = |field: &NestedField| {
        let mut schema = match field.mark {
            FieldMark::Supported => json!({ "x-support": "supported" }),
            FieldMark::Refused(accepted) => {
                json!({ "x-support": "refused", "enum": values(accepted).collect::<Vec<_>>() })
            }
            FieldMark::WithoutEffect => json!({ "x-support": "without effect" }),
        };
        if !field.objects.is_empty() {
            schema["anyOf"] = self::schema(field.objects);
        }
        (field.name.to_owned(), schema)
    };
    let mut properties: Map<String, Value> = fields.iter().map(property).collect();
    if let Some(found) = properties.get_mut("type").and_then(Value::as_object_mut) {
        found.extend(kind.as_object().cloned().unwrap_or_default());
    }
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}
