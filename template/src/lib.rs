//! Renders chat templates in the same way as `apply_chat_template` of transformers.
//!
//! The environment follows `utils/chat_template_utils.py` of transformers: Jinja with `trim_blocks`,
//! `lstrip_blocks` and loop controls, `raise_exception`, `strftime_now`, a `tojson` that is `json.dumps`, and
//! `{% generation %}` blocks. This crate reads no files: the caller passes the text of a template and the
//! special tokens.

mod arguments;
mod budget;
mod chat;
mod collection_methods;
mod engine;
mod error;
mod generator;
mod globals;
mod jinja;
mod markup;
mod repr_json;
mod rewrite;
mod source;
mod str_methods;
mod strftime;
#[cfg(test)]
mod tests;

pub use chat::{Chat, ChatTemplate};
pub use error::{TemplateError, TemplatePlace};

/// An error of the engine with only the given message.
fn invalid(what: impl Into<std::borrow::Cow<'static, str>>) -> minijinja::Error {
    minijinja::Error::new(minijinja::ErrorKind::InvalidOperation, what)
}
