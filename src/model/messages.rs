//! Messages of a conversation.

use serde_json::{Value, json};

/// Creates a message with the role `user`, for [`Model::chat`](super::Model::chat).
pub fn user(content: impl Into<String>) -> Value {
    message("user", content)
}

/// Creates a message with the role `system`, which tells the model how to behave.
pub fn system(content: impl Into<String>) -> Value {
    message("system", content)
}

/// Creates a message with the role `assistant`, which is an earlier answer of the model.
pub fn assistant(content: impl Into<String>) -> Value {
    message("assistant", content)
}

fn message(role: &str, content: impl Into<String>) -> Value {
    json!({ "role": role, "content": content.into() })
}
