//! Messages of a conversation.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// The author, such as `user` or `assistant`.
    pub role: String,
    /// The content, in the order in which the model reads it. Serialized, it is the text without images.
    #[serde(rename = "content", serialize_with = "text", deserialize_with = "single")]
    pub parts: Vec<MessagePart>,
    /// Further keys that chat templates read, such as `tool_calls`.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// A part of a message's content.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum MessagePart {
    /// A text.
    Text(String),
    /// The bytes of an image file, such as a PNG.
    Image(Arc<[u8]>),
}

impl MessagePart {
    /// Returns the texts of a content, one per line.
    pub fn joined(parts: &[Self]) -> String {
        let texts: Vec<&str> = parts.iter().filter_map(Self::text).collect();
        texts.join("\n")
    }

    /// Returns the text of a part that is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Image(_) => None,
        }
    }

    /// Returns the bytes of a part that is an image.
    pub fn image(&self) -> Option<&[u8]> {
        match self {
            Self::Image(bytes) => Some(bytes),
            Self::Text(_) => None,
        }
    }

    /// Returns the object that chat templates read.
    fn json(&self) -> Value {
        match self {
            Self::Text(text) => json!({ "type": "text", "text": text }),
            Self::Image(_) => json!({ "type": "image" }),
        }
    }
}

impl Message {
    /// Creates a message with one text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), parts: vec![MessagePart::Text(content.into())], fields: Map::new() }
    }

    /// Puts parts, such as [images](super::image), before the content.
    #[must_use]
    pub fn after(mut self, parts: impl IntoIterator<Item = MessagePart>) -> Self {
        self.parts.splice(0..0, parts);
        self
    }

    /// Returns the texts of the content, one per line.
    pub fn text(&self) -> String {
        MessagePart::joined(&self.parts)
    }

    /// Returns the object that chat templates read. The content is a text, or a list of parts if there are images.
    pub fn json(&self) -> Value {
        let content = if self.parts.iter().any(|part| part.image().is_some()) {
            self.parts.iter().map(MessagePart::json).collect::<Vec<_>>().into()
        } else {
            self.text().into()
        };
        let own = [("role".to_owned(), self.role.as_str().into()), ("content".to_owned(), content)];
        let fields = self.fields.iter().map(|(name, value)| (name.clone(), value.clone()));
        own.into_iter().chain(fields).collect::<Map<String, Value>>().into()
    }
}

fn text<S: Serializer>(parts: &[MessagePart], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&MessagePart::joined(parts))
}

fn single<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<MessagePart>, D::Error> {
    Ok(vec![MessagePart::Text(String::deserialize(deserializer)?)])
}

/// Creates a message with the role `user`, for [`Model::chat`](super::Model::chat).
pub fn user(content: impl Into<String>) -> Message {
    Message::new("user", content)
}

/// Creates a message with the role `system`, which tells the model how to behave.
pub fn system(content: impl Into<String>) -> Message {
    Message::new("system", content)
}

/// Creates a message with the role `assistant`, which is an earlier answer of the model.
pub fn assistant(content: impl Into<String>) -> Message {
    Message::new("assistant", content)
}
