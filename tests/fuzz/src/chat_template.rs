//! Fuzzes chat templates, with a conversation.

use std::path::Path;

use serde_json::{Map, json};
use tracewright::generate::{Chat, ChatTemplate};

use crate::said;

pub fn read(_: &Path, bytes: &[u8]) {
    let Ok(source) = str::from_utf8(bytes) else { return };
    let tokens =
        Map::from_iter([("bos_token".to_owned(), json!("<s>")), ("eos_token".to_owned(), json!("</s>"))]);
    let Some(template) = said(ChatTemplate::from_source(source, tokens)) else { return };
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let messages = vec![message("system", "be brief"), message("user", "häi\n"), message("assistant", " ho")];
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    said(template.render(&Chat {
        messages,
        tools: Some(vec![tool]),
        add_generation_prompt: true,
        ..Chat::default()
    }));
}
