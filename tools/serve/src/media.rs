//! Reads the images in messages of OpenAI's, Anthropic's and Ollama's interfaces.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tracewright::model::{Message, MessagePart};
use tracewright::pixels::{ImageLimits, Pixels};

use crate::failure::{Failure, causes};
use crate::models::Loaded;

/// The most images of a request.
const MOST: usize = 16;

/// All images of a request have at most this many times the pixels of the largest image.
const LARGEST: u64 = 2;

/// Why the server loads no file from another server.
const NO_NETWORK: &str = "a `data:` URL with base64, because the server loads no files from the network";

/// Returns the bytes of a part that is an image, or `None` for another part.
pub fn image(part: &Value, at: &str) -> Option<Result<MessagePart, Failure>> {
    let bytes = match part.get("type").and_then(Value::as_str)? {
        "image_url" => match part.get("image_url") {
            Some(Value::Object(inner)) => of_url(inner.get("url"), &format!("{at}.image_url.url")),
            url => of_url(url, &format!("{at}.image_url")),
        },
        "input_image" => of_url(part.get("image_url"), &format!("{at}.image_url")),
        "image" => of_source(part.get("source").unwrap_or(&Value::Null), &format!("{at}.source")),
        _ => return None,
    };
    Some(bytes.map(|bytes| MessagePart::Image(bytes.into())))
}

fn of_source(source: &Value, at: &str) -> Result<Vec<u8>, Failure> {
    match source.get("type").and_then(Value::as_str) {
        Some("base64") => of_base64(source["data"].as_str(), &format!("{at}.data")),
        Some("url") => of_url(source.get("url"), &format!("{at}.url")),
        _ => Err(Failure::field(format!("{at}.type"), kind(&source["type"]), "`base64`")),
    }
}

fn of_url(url: Option<&Value>, at: &str) -> Result<Vec<u8>, Failure> {
    let Some(url) = url.and_then(Value::as_str) else {
        return Err(Failure::field(at, kind(url.unwrap_or(&Value::Null)), NO_NETWORK));
    };
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    let found = match scheme.to_ascii_lowercase().as_str() {
        "data" => match rest.split_once(',') {
            Some((head, data)) if head.to_ascii_lowercase().ends_with(";base64") => {
                return of_base64(Some(data), at);
            }
            _ => "a `data:` URL without `;base64,`",
        },
        "http" | "https" => "a URL of another server",
        _ => "a text of another kind",
    };
    Err(Failure::field(at, found, NO_NETWORK))
}

/// No error repeats the data.
fn of_base64(data: Option<&str>, at: &str) -> Result<Vec<u8>, Failure> {
    let bytes = data.and_then(|data| STANDARD.decode(data.trim()).ok());
    bytes.ok_or_else(|| Failure::field(at, "no base64", "the bytes of an image in base64"))
}

/// Ollama's images of a message are only their data.
pub fn of_ollama(data: &Value) -> Value {
    json!({ "type": "image", "source": { "type": "base64", "data": data } })
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "missing",
        Value::String(_) => "another text",
        _ => "no text",
    }
}

/// The paths of all images in the messages of a body.
pub fn paths(body: &Value) -> Vec<String> {
    let mut paths = Vec::new();
    for list in ["messages", "input"] {
        for (i, message) in body[list].as_array().into_iter().flatten().enumerate() {
            for (j, part) in message["content"].as_array().into_iter().flatten().enumerate() {
                if matches!(part["type"].as_str(), Some("image" | "image_url" | "input_image")) {
                    paths.push(format!("{list}[{i}].content[{j}]"));
                }
            }
        }
    }
    paths
}

/// Decodes the images of messages, whose paths in the body are `paths`.
pub fn decoded(messages: &[Message], paths: &[String], loaded: &Loaded) -> Result<Vec<Pixels>, Failure> {
    let parts = messages.iter().flat_map(|message| &message.parts);
    let images: Vec<_> = parts.filter_map(MessagePart::image).collect();
    let param = |index: usize| paths.get(index).map_or("messages", String::as_str);
    if !images.is_empty() && !loaded.model.sees() {
        let expected = "a text, because the model cannot read images";
        return Err(Failure::field(param(0), "an image", expected));
    }
    if images.len() > MOST {
        return Err(Failure::field(param(MOST), "one image more", format!("at most {MOST} images")));
    }
    let limits = ImageLimits::default();
    let mut left = limits.pixels.saturating_mul(LARGEST);
    let decode = |(index, bytes): (usize, &[u8])| -> Result<Pixels, Failure> {
        let refuse = |error| {
            let expected = format!("an image that can be read: {}", causes(&error));
            Failure::field(param(index), "damaged or too large", expected)
        };
        let limits = ImageLimits { pixels: limits.pixels.min(left), ..limits };
        let pixels = limits.decode(bytes).map_err(refuse)?;
        left = left.saturating_sub((pixels.width() * pixels.height()) as u64);
        Ok(pixels)
    };
    images.into_iter().enumerate().map(decode).collect()
}
