//! Renders chat templates in the same way as `apply_chat_template` of HF transformers. The environment of a
//! template is the same as in `utils/chat_template_utils.py` of HF transformers. The environment has the
//! settings `trim_blocks`, `lstrip_blocks` and loop controls. The environment has the functions
//! `raise_exception` and `strftime_now`, a filter `tojson` that is `json.dumps`, and `{% generation %}`
//! blocks. minijinja, a Jinja engine in Rust, evaluates the templates. This crate reads no files, so the
//! caller passes the text of a template and the special tokens.

mod arguments;
mod budget;
mod chat;
mod collection_methods;
mod engine;
mod error;
mod escape;
mod format;
mod generator;
mod globals;
mod jinja;
mod json_values;
mod markup;
mod number_filters;
mod numbers;
mod operate;
mod operators;
mod repr_json;
mod rewrite;
mod sorted;
mod source;
mod str_methods;
mod strftime;
#[cfg(test)]
mod tests;

pub use chat::{Chat, ChatTemplate};
pub use error::{TemplateError, TemplatePlace};

/// A minijinja error with the given message.
fn invalid(what: impl Into<std::borrow::Cow<'static, str>>) -> minijinja::Error {
    minijinja::Error::new(minijinja::ErrorKind::InvalidOperation, what)
}
