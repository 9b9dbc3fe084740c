//! Reads the body of a request as JSON, and converts the JSON fields to Rust types.

use std::any::TypeId;
use std::collections::HashMap;
use std::io::Read as _;
use std::sync::{Arc, LazyLock, Mutex};

use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use errors::{escaped, shortened};
use flate2::read::MultiGzDecoder;
use futures_util::StreamExt as _;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::ServeOptions;
use crate::failure::Failure;
use crate::sync::lock;

/// Reads the body of a request as a JSON object.
pub async fn read(headers: &HeaderMap, body: Body, options: &ServeOptions) -> Result<Value, Failure> {
    let kind = headers.get(header::CONTENT_TYPE).map(|kind| String::from_utf8_lossy(kind.as_bytes()));
    let essence = kind.as_deref().and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    // Browsers let any web page send plain text to this server. Before a web page sends JSON, the
    // browser asks the server for permission.
    if !essence.eq_ignore_ascii_case("application/json") {
        let found = shortened(escaped(essence), 60);
        return Err(Failure::ContentType { found, expected: "application/json" });
    }
    let encoding =
        headers.get(header::CONTENT_ENCODING).map(|found| String::from_utf8_lossy(found.as_bytes()));
    let is_gzip = match encoding.as_deref().map(str::to_ascii_lowercase).as_deref() {
        None | Some("identity") => false,
        Some("gzip" | "x-gzip") => true,
        Some(found) => return Err(Failure::Encoding { found: shortened(escaped(found), 60) }),
    };
    let (limit, most) = (options.read_timeout, options.max_body);
    let bytes = tokio::time::timeout(limit, collect(body, most)).await;
    let mut bytes = bytes.map_err(|_| Failure::TooSlow { limit })??;
    if is_gzip {
        bytes = unzipped(&bytes, most)?;
    }
    let value: Value = match std::str::from_utf8(&bytes) {
        Ok(text) => files::parse_exact(text),
        // The error contains the place of the byte that is no UTF-8.
        Err(_) => serde_json::from_slice(&bytes),
    }
    .map_err(|error| Failure::Json { why: error.to_string() })?;
    if value.is_object() { Ok(value) } else { Err(Failure::field("body", shown(&value), "an object")) }
}

async fn collect(body: Body, most: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let mut parts = body.into_data_stream();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|error| Failure::Body { why: error.to_string() })?;
        if bytes.len() + part.len() > most {
            return Err(Failure::TooLarge { most });
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}

/// Decompresses a body, up to the size limit of bodies.
fn unzipped(bytes: &[u8], most: usize) -> Result<Vec<u8>, Failure> {
    let mut whole = Vec::new();
    let mut limited = MultiGzDecoder::new(bytes).take(most as u64 + 1);
    limited.read_to_end(&mut whole).map_err(|error| Failure::Body { why: error.to_string() })?;
    if whole.len() > most { Err(Failure::TooLarge { most }) } else { Ok(whole) }
}

/// Generates the JSON Schema of a type. The schema contains the schemas of all referenced types.
pub fn schema<T: JsonSchema>() -> Schema {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    settings.into_generator().into_root_schema_for::<T>()
}

/// The schema of a type, generated for the first body only.
fn known_schema<T: JsonSchema + 'static>() -> Arc<Schema> {
    static KNOWN: LazyLock<Mutex<HashMap<TypeId, Arc<Schema>>>> = LazyLock::new(Mutex::default);
    let mut known = lock(&KNOWN);
    known.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(schema::<T>())).clone()
}

/// Converts a JSON object to a struct. If a field does not follow the struct's JSON Schema, the error
/// contains the path of this field.
pub fn fields<T: DeserializeOwned + JsonSchema + 'static>(body: &Value) -> Result<T, Failure> {
    check(known_schema::<T>().as_value(), body, "")?;
    T::deserialize(body).map_err(|_| Failure::field("body", shown(body), "values that the fields can hold"))
}

/// Checks the types of a value and of its parts. `path` leads to the value, as in `messages[0].role`.
pub fn check(schema: &Value, found: &Value, path: &str) -> Result<(), Failure> {
    if let Some(any) = schema["anyOf"].as_array() {
        let one = any.iter().find(|one| (one["type"] == "null") == found.is_null());
        return one.map_or(Ok(()), |one| check(one, found, path));
    }
    let kinds = match &schema["type"] {
        Value::Array(kinds) => kinds.as_slice(),
        kind => std::slice::from_ref(kind),
    };
    let Some(kind) = kinds.iter().find_map(|kind| kind.as_str().filter(|kind| *kind != "null")) else {
        return Ok(());
    };
    if found.is_null() && kinds.iter().any(|kind| kind == "null") {
        return Ok(());
    }
    let format = schema["format"].as_str().unwrap_or_default();
    let (is_one, expected) = match kind {
        "boolean" => (found.is_boolean(), "true or false"),
        "string" => (found.is_string(), "a text"),
        "array" => (found.is_array(), "a list"),
        "object" => (found.is_object(), "an object"),
        "integer" if format == "uint32" => {
            (found.as_u64().is_some_and(|number| number <= u32::MAX.into()), "a whole number below 2^32")
        }
        "integer" if format.starts_with("uint") => (found.is_u64(), "a whole number from 0"),
        "integer" => (found.is_i64(), "a whole number"),
        _ => (found.is_number(), "a number"),
    };
    match files::exact_number(found) {
        Some(number) if matches!(kind, "number" | "integer") => {
            return Err(Failure::field(path, shortened(number.to_owned(), 80), "a smaller number"));
        }
        _ if !is_one => return Err(Failure::field(path, shown(found), expected)),
        _ => {}
    }
    let inside = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(name) = required.into_iter().find(|name| found.get(name).is_none()) {
        return Err(Failure::Missing { param: inside(name), expected: "a value".to_owned() });
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        found.get(name).map_or(Ok(()), |field| check(schema, field, &inside(name)))?;
    }
    let mut items = found.as_array().into_iter().flatten().enumerate();
    items.try_for_each(|(i, item)| check(&schema["items"], item, &format!("{path}[{i}]")))
}

/// Formats a JSON value for an error message.
pub fn shown(value: &Value) -> String {
    format!("`{}`", escaped(&shortened(files::exact_json(value), 60)))
}

/// A response with a JSON value, in which each number keeps its text.
pub fn response(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], files::exact_json(value)).into_response()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, JsonSchema)]
    #[allow(dead_code, reason = "only the check of the fields matters")]
    struct Inner {
        is: Option<bool>,
        name: String,
    }

    #[derive(Debug, Deserialize, JsonSchema)]
    #[allow(dead_code, reason = "only the check of the fields matters")]
    struct Outer {
        count: u64,
        ids: Option<Vec<u32>>,
        inner: Option<Inner>,
        list: Option<Vec<Inner>>,
        any: Option<Value>,
        must: Value,
        seed: Option<i64>,
        share: Option<f32>,
    }

    #[test]
    fn a_field_is_named_with_what_it_is_and_what_is_expected() {
        let check = |body: &str, expected: &str| {
            let found = fields::<Outer>(&files::parse_exact(body).unwrap()).map(drop);
            assert_eq!(
                found.map_or_else(|failure| failure.to_string(), |()| String::new()),
                expected,
                "{body}"
            );
        };
        let with = |more: &str| format!(r#"{{"count": 1, "must": [], {more}}}"#);
        check(r#"{"must": 1}"#, "`count` is missing, expected a value");
        check(r#"{"count": 1}"#, "`must` is missing, expected a value");
        check(r#"{"count": -1, "must": 1}"#, "`count` is `-1`, expected a whole number from 0");
        check(r#"{"count": null, "must": 1}"#, "`count` is `null`, expected a whole number from 0");
        check(r#"{"count": 1.0, "must": 1}"#, "`count` is `1.0`, expected a whole number from 0");
        check(
            &with(r#""ids": [1, 4294967296]"#),
            "`ids[1]` is `4294967296`, expected a whole number below 2^32",
        );
        check(&with(r#""inner": []"#), "`inner` is `[]`, expected an object");
        check(&with(r#""inner": {"is": 1, "name": ""}"#), "`inner.is` is `1`, expected true or false");
        check(&with(r#""list": [{"name": "a"}, {}]"#), "`list[1].name` is missing, expected a value");
        check(
            &with(r#""seed": 9223372036854775808"#),
            "`seed` is `9223372036854775808`, expected a whole number",
        );
        check(&with(r#""share": "hot""#), "`share` is `\"hot\"`, expected a number");
        check(&with(r#""share": 1e999"#), "`share` is 1e999, expected a smaller number");
        for good in [
            r#""ids": null, "inner": null, "any": {"a": [1e999]}, "seed": -5, "share": 1"#,
            r#""ids": [], "inner": {"name": "a", "is": null}, "list": [], "unknown": {}, "share": 1e300"#,
        ] {
            check(&with(good), "");
        }
    }
}
