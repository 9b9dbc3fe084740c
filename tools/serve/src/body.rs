//! Reads the body of a request as JSON, and converts the JSON fields to Rust types.

use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use errors::{escaped, shortened};
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde_json::Value;

use crate::ServeOptions;
use crate::failure::Failure;

/// Reads the body of a request as a JSON object.
pub async fn read(headers: &HeaderMap, body: Body, options: &ServeOptions) -> Result<Value, Failure> {
    let kind = headers.get(header::CONTENT_TYPE).map(|kind| String::from_utf8_lossy(kind.as_bytes()));
    let essence = kind.as_deref().and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    // Browsers let any web page send plain text to this server. Before a web page sends JSON, the
    // browser asks the server for permission.
    if !essence.eq_ignore_ascii_case("application/json") {
        let found = shortened(escaped(essence), 60);
        return Err(Failure::ContentType { found });
    }
    let (limit, most) = (options.read_timeout, options.max_body);
    let bytes = tokio::time::timeout(limit, collect(body, most)).await;
    let bytes = bytes.map_err(|_| Failure::TooSlow { limit })??;
    let value: Value = match std::str::from_utf8(&bytes) {
        Ok(text) => files::parse_exact(text),
        // The error contains the place of the byte that is no UTF-8.
        Err(_) => serde_json::from_slice(&bytes),
    }
    .map_err(|error| Failure::Json { why: error.to_string() })?;
    match value.is_object() {
        true => Ok(value),
        false => Err(Failure::field("body", shown(&value), "an object")),
    }
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

/// Converts a JSON value to a struct. If a field is invalid, the error contains the name of this
/// field.
pub fn fields<'a, T: Deserialize<'a>>(value: &'a Value) -> Result<T, Failure> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        if let Some(number) = exact_at(value, error.path()) {
            return Failure::field(path, shortened(number.to_owned(), 80), "a smaller number");
        }
        let why = error.into_inner().to_string();
        match (why.strip_prefix("missing field `"), why.strip_prefix("invalid ")) {
            (Some(rest), _) => {
                let name = rest.trim_end_matches('`');
                let param = if path == "." { name.to_owned() } else { format!("{path}.{name}") };
                Failure::Missing { param, expected: "a value".to_owned() }
            }
            (_, Some(rest)) => {
                let rest = rest.split_once(": ").map_or(rest, |(_, rest)| rest);
                let (found, expected) = rest.split_once(", expected ").unwrap_or((rest, "another value"));
                Failure::field(path, shortened(escaped(found), 80), in_words(expected))
            }
            _ => Failure::field(path, shortened(escaped(&why), 80), "another value"),
        }
    })
}

/// The number at a path, if no Rust type can hold the number.
fn exact_at<'a>(value: &'a Value, path: &serde_path_to_error::Path) -> Option<&'a str> {
    use serde_path_to_error::Segment;
    let mut found = value;
    for segment in path {
        found = match segment {
            Segment::Seq { index } => found.get(*index)?,
            Segment::Map { key } => found.get(key)?,
            _ => return None,
        };
    }
    files::exact_number(found)
}

/// Returns a description of a Rust type for users of JSON, such as "a whole number from 0" for
/// `u64`.
fn in_words(expected: &str) -> &str {
    match expected {
        "f32" | "f64" => "a number",
        "u64" | "u32" | "usize" => "a whole number from 0",
        "i64" => "a whole number",
        "a sequence" => "a list",
        "a map" => "an object",
        "a string" => "a text",
        "a boolean" => "true or false",
        other if other.starts_with("struct ") => "an object",
        other => other,
    }
}

/// Formats a JSON value for an error message.
pub fn shown(value: &Value) -> String {
    format!("`{}`", escaped(&shortened(files::exact_json(value), 60)))
}

/// A response with a JSON value, in which each number keeps its text.
pub fn response(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], files::exact_json(value)).into_response()
}
