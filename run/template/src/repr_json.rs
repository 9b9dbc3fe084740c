//! Formats values like Python's functions `repr` and `json.dumps`. Templates call `json.dumps` as
//! the filter `tojson`.

use std::borrow::Cow;

use files::limits;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, Value};

use crate::budget::blanks;
use crate::collection_methods::{self, View};
use crate::{invalid, numbers};

/// Python's `json.dumps` with `ensure_ascii=False`. Jinja's filter `tojson` escapes text for HTML,
/// but the filter `tojson` of HF transformers does not.
pub fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let option = |name: &str| options.get::<Option<Value>>(name);
    let indent = match option("indent")? {
        None => None,
        Some(width) if width.kind() == ValueKind::Number => {
            let width = i64::try_from(width)?;
            Some(blanks(usize::try_from(width).unwrap_or(0))?)
        }
        Some(text) if text.is_none() => None,
        Some(text) => Some(text.to_string()),
    };
    let (item, key) = match option("separators")?.filter(|separators| !separators.is_none()) {
        Some(separators) => {
            (separators.get_item_by_index(0)?.to_string(), separators.get_item_by_index(1)?.to_string())
        }
        None if indent.is_some() => (",".to_string(), ": ".to_string()),
        None => (", ".to_string(), ": ".to_string()),
    };
    let flag = |name| option(name).map(|value| value.is_some_and(|value| value.is_true()));
    let (ascii, sort_keys) = (flag("ensure_ascii")?, flag("sort_keys")?);
    options.assert_all_used()?;
    let mut out = String::new();
    Dumps { indent, item, key, ascii, sort_keys }.value(value, 0, &mut out)?;
    Ok(out)
}

struct Dumps {
    indent: Option<String>,
    item: String,
    key: String,
    ascii: bool,
    sort_keys: bool,
}

impl Dumps {
    fn value(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        bounded(depth, out)?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            _ if numbers::is_number(value) => out.push_str(&match &*numbers::repr(value)? {
                "nan" => "NaN".to_owned(),
                number => number.replace("inf", "Infinity"),
            }),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable if collection_methods::is_list(value) => {
                let items: Vec<_> = value.try_iter()?.collect();
                self.list(('[', ']'), &items, depth, out, |item, out| self.value(item, depth + 1, out))?;
            }
            ValueKind::Map if collection_methods::is_dict(value) => {
                let mut keys: Vec<_> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.list(('{', '}'), &keys, depth, out, |key, out| {
                    match key.kind() {
                        ValueKind::String => self.string(key.as_str().unwrap_or_default(), out),
                        _ if key.is_none() || key.kind() == ValueKind::Bool || numbers::is_number(key) => {
                            out.push('"');
                            self.value(key, depth, out)?;
                            out.push('"');
                        }
                        other => {
                            return Err(invalid(format!(
                                "a key of `tojson` is a {other}, expected a string"
                            )));
                        }
                    }
                    out.push_str(&self.key);
                    self.value(&value.get_item(key)?, depth + 1, out)
                })?;
            }
            other => return Err(invalid(format!("`tojson` cannot write a value of type {other}"))),
        }
        Ok(())
    }

    fn list(
        &self,
        (open, close): (char, char),
        items: &[Value],
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = self.indent.as_ref().filter(|_| !items.is_empty()) {
                out.push('\n');
                out.push_str(&indent.repeat(depth));
            }
        };
        out.push(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(&self.item);
            }
            line(depth + 1, out);
            write(item, out)?;
        }
        line(depth, out);
        out.push(close);
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\0'..' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
                '\u{7f}'.. if self.ascii && c != '\u{7f}' => {
                    c.encode_utf16(&mut [0; 2])
                        .iter()
                        .for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

pub fn str(value: &Value) -> Result<Cow<'_, str>, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.as_str().unwrap_or_default().into()),
        ValueKind::Undefined => Ok("".into()),
        _ => Ok(repr(value, false)?.into()),
    }
}

/// Converts a separator or a replacement to text. The function rejects lists and dictionaries,
/// because the text of a list or a dictionary can be endless.
pub fn as_text(value: &Value) -> Result<Cow<'_, str>, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.as_str().unwrap_or_default().into()),
        ValueKind::Bool | ValueKind::None | ValueKind::Undefined => str(value),
        _ if numbers::is_number(value) => str(value),
        kind => Err(invalid(format!("expected a text, found a {kind}"))),
    }
}

/// Python's `repr` of a value, including the values inside lists and dictionaries. With `ascii`,
/// the function escapes every character outside of ASCII.
pub fn repr(value: &Value, ascii: bool) -> Result<String, Error> {
    let mut out = String::new();
    write_repr(value, ascii, 0, &mut out)?;
    Ok(out)
}

fn write_repr(value: &Value, ascii: bool, depth: usize, out: &mut String) -> Result<(), Error> {
    bounded(depth, out)?;
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None | ValueKind::Bool => out.push_str(&value.to_string()),
        _ if numbers::is_number(value) => out.push_str(&numbers::repr(value)?),
        ValueKind::String if value.is_safe() => {
            out.push_str("Markup(");
            quoted(value.as_str().unwrap_or_default(), ascii, out);
            out.push(')');
        }
        ValueKind::String => quoted(value.as_str().unwrap_or_default(), ascii, out),
        _ if collection_methods::is_dict(value) => write_items(value, ["{", "}"], ascii, depth, out)?,
        _ if collection_methods::is_namespace(value) => {
            write_items(value, ["<Namespace {", "}>"], ascii, depth, out)?
        }
        _ if collection_methods::is_tuple(value) => {
            let close = if value.len() == Some(1) { ",)" } else { ")" };
            write_items(value, ["(", close], ascii, depth, out)?;
        }
        _ if collection_methods::is_list(value) => write_items(value, ["[", "]"], ascii, depth, out)?,
        _ => {
            let Some(view) = View::of(value) else {
                return Err(invalid(collection_methods::without_text(value)));
            };
            out.push_str(view.name);
            write_items(&view.list, ["([", "])"], ascii, depth, out)?;
        }
    }
    Ok(())
}

fn write_items(
    value: &Value,
    [open, close]: [&str; 2],
    ascii: bool,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    out.push_str(open);
    for (i, item) in value.try_iter()?.enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        write_repr(&item, ascii, depth + 1, out)?;
        if value.kind() == ValueKind::Map {
            out.push_str(": ");
            write_repr(&value.get_item(&item)?, ascii, depth + 1, out)?;
        }
    }
    out.push_str(close);
    Ok(())
}

/// Formats a string in quotes. The function escapes characters that are not printable. With
/// `ascii`, the function also escapes characters outside of ASCII.
fn quoted(text: &str, ascii: bool, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if if c.is_ascii() { !c.is_control() } else { !ascii && is_printable(c) } => out.push(c),
            '\0'..='\u{ff}' => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            '\u{100}'..='\u{ffff}' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    out.push(quote);
}

/// Whether `repr` prints a character without an escape. Rust uses the same Unicode categories as
/// Python. The function puts a letter before the tested character, because Rust escapes a combining
/// character at the beginning of a text.
fn is_printable(c: char) -> bool {
    String::from_iter(['a', c]).escape_debug().count() == 2
}

/// Checks the limits on the length and the depth of the output.
fn bounded(depth: usize, out: &str) -> Result<(), Error> {
    if depth > limits::TEMPLATE_DEPTH || out.len() as u64 > limits::PROMPT {
        Err(invalid("a value is nested too deep, or too long as a text"))
    } else {
        Ok(())
    }
}
