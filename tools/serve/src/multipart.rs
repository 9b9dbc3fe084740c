//! Reads the fields and the file of a form (`multipart/form-data`, RFC 7578).

use axum::body::Body;
use axum::http::{HeaderMap, header};
use errors::{escaped, shortened};
use multer::{Constraints, Multipart, SizeLimit};
use serde_json::{Map, Value, json};

use crate::ServeOptions;
use crate::failure::Failure;

/// The field that contains the file.
pub const FILE: &str = "file";

/// The most fields of a form.
const FIELDS: usize = 64;

/// A form. Texts of other fields than the file are JSON where they look like a number or a flag, and fields that are
/// repeated are lists.
pub struct Form {
    /// The field `file` has the file's name.
    pub fields: Value,
    pub file: Vec<u8>,
}

/// Returns what separates the fields of a form of at most `most` bytes. A larger one is rejected before its bytes
/// arrive, if its length is known.
pub fn boundary(headers: &HeaderMap, most: usize) -> Result<String, Failure> {
    let kind = headers.get(header::CONTENT_TYPE).map(|kind| String::from_utf8_lossy(kind.as_bytes()));
    let kind = kind.unwrap_or_default();
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: u64| length > most as u64) {
        return Err(Failure::TooLarge { most });
    }
    multer::parse_boundary(&*kind).map_err(|_| {
        let found = shortened(escaped(&kind), 60);
        Failure::ContentType { found, expected: "multipart/form-data" }
    })
}

/// Reads a form of at most `most` bytes.
pub async fn read(
    boundary: String,
    body: Body,
    options: &ServeOptions,
    most: usize,
) -> Result<Form, Failure> {
    let limits = SizeLimit::new().whole_stream(most as u64);
    let constraints = Constraints::new().size_limit(limits);
    let form = Multipart::with_constraints(body.into_data_stream(), boundary, constraints);
    let limit = options.read_timeout;
    tokio::time::timeout(limit, collect(form, most)).await.map_err(|_| Failure::TooSlow { limit })?
}

async fn collect(mut form: Multipart<'_>, most: usize) -> Result<Form, Failure> {
    let refuse = |error: multer::Error| match error {
        multer::Error::StreamSizeExceeded { .. } | multer::Error::FieldSizeExceeded { .. } => {
            Failure::TooLarge { most }
        }
        error => Failure::Body { why: escaped(&error.to_string()) },
    };
    let (mut fields, mut file) = (Map::new(), Vec::new());
    let mut count = 0;
    while let Some(field) = form.next_field().await.map_err(refuse)? {
        count += 1;
        if count > FIELDS {
            return Err(Failure::Body { why: format!("it has more than {FIELDS} fields") });
        }
        let name = field.name().unwrap_or_default().to_owned();
        if name == FILE {
            if fields.contains_key(FILE) {
                return Err(Failure::field(FILE, "repeated", "one file"));
            }
            fields.insert(name, json!(shortened(escaped(field.file_name().unwrap_or(FILE)), 200)));
            file = field.bytes().await.map_err(refuse)?.into();
            continue;
        }
        let text = field.text().await.map_err(refuse)?;
        add(&mut fields, name, text)?;
    }
    Ok(Form { fields: Value::Object(fields), file })
}

/// Adds a field. A name that ends in `[]` is a list.
fn add(fields: &mut Map<String, Value>, name: String, text: String) -> Result<(), Failure> {
    match fields.get_mut(&name) {
        Some(Value::Array(list)) => list.push(json!(text)),
        Some(_) => return Err(Failure::field(name, "repeated", "one value")),
        None if name.ends_with("[]") => drop(fields.insert(name, json!([text]))),
        None => drop(fields.insert(name, json!(text))),
    }
    Ok(())
}
