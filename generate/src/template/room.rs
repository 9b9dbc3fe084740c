//! How much of a value there may be, and what would make more of it.

use std::borrow::Cow;

use files::limits;
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Whether no value is asked to be wider than a text may be: by a number in the format, or by a `*` and a value; and whether
/// keys are ASCII: minijinja 3.0.5 panics in the middle of another character, that of a key without end too.
pub fn check_format(text: &str, values: &[Value]) -> Result<(), Error> {
    const DIGITS: usize = 7;
    let wide =
        |width: &Value| i64::try_from(width.clone()).is_ok_and(|width| width.unsigned_abs() > limits::PROMPT);
    let without_signs = text.replace("%%", "");
    let mut keys = without_signs.split("%(").skip(1).filter_map(|rest| rest.split(')').next());
    if let Some(key) = keys.find(|key| !key.is_ascii()) {
        let message = format!("a key in a format is not ASCII, which is not supported: `{key}`");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let long = text.split(|c: char| !c.is_ascii_digit()).any(|number| number.len() > DIGITS);
    match long || (text.contains('*') && values.iter().any(wide)) {
        true => Err(Error::new(ErrorKind::InvalidOperation, "a width in a format is too large")),
        false => Ok(()),
    }
}

/// How much of a value there may be.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Bytes of texts, those within lists and dictionaries included.
    pub bytes: usize,
}

impl Room {
    /// The value, if there is room for it.
    pub fn bounded(self, value: Value) -> Result<Value, Error> {
        let (mut bytes, mut items) = (self.bytes, limits::TEMPLATE_ITEMS);
        match takes(&value, 0, &mut bytes, &mut items) {
            Some(()) => Ok(value),
            None => Err(too_large("a value becomes too large or is nested too deep")),
        }
    }

    /// Whether a list may be joined with a text between its items.
    pub fn check_join(self, list: &Value, between: usize) -> Result<(), Error> {
        self.bounded(list.clone())?;
        let items = list.len().unwrap_or(limits::TEMPLATE_ITEMS).saturating_mul(between);
        if items > self.bytes { Err(too_large("a list becomes too long as a text")) } else { Ok(()) }
    }

    /// Whether each occurrence of a text may be replaced by another.
    pub fn check_replace(self, text: &str, from: &str, to: &str) -> Result<(), Error> {
        // Nothing stands between any two characters, and at both ends.
        let count = if from.is_empty() { text.len() + 1 } else { text.matches(from).count() };
        match count.saturating_mul(to.len()) > self.bytes {
            true => Err(too_large("a text becomes too long where a part is replaced")),
            false => Ok(()),
        }
    }
}

/// Takes the room that a value needs; nothing if there is not enough.
fn takes(value: &Value, depth: usize, bytes: &mut usize, items: &mut usize) -> Option<()> {
    *items = items.checked_sub(1)?;
    if let Some(text) = value.as_str() {
        *bytes = bytes.checked_sub(text.len())?;
        return Some(());
    }
    let is_map = match value.kind() {
        ValueKind::Map => true,
        ValueKind::Seq | ValueKind::Iterable => false,
        _ => return Some(()),
    };
    if depth > limits::TEMPLATE_DEPTH || value.len().is_some_and(|len| len > *items) {
        return None;
    }
    for item in value.try_iter().ok()? {
        takes(&item, depth + 1, bytes, items)?;
        if is_map && let Ok(part) = value.get_item(&item) {
            takes(&part, depth + 1, bytes, items)?;
        }
    }
    Some(())
}

fn too_large(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// What stands between others or replaces them, as a text. A list or a dictionary has no place there, and its text no end.
pub fn as_text(value: &Value) -> Result<Cow<'_, str>, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.as_str().unwrap_or_default().into()),
        ValueKind::Number | ValueKind::Bool | ValueKind::None | ValueKind::Undefined => {
            Ok(value.to_string().into())
        }
        kind => Err(Error::new(ErrorKind::InvalidOperation, format!("expected a text, found a {kind}"))),
    }
}

/// The bytes that `join` puts between two items, of its arguments behind the list.
pub fn joiner(arguments: &[Value]) -> Result<usize, Error> {
    let joiner = match arguments.first() {
        Some(named) if named.is_kwargs() => {
            Some(named.get_attr("d")?).filter(|joiner| !joiner.is_undefined())
        }
        first => first.cloned(),
    };
    joiner.map_or(Ok(0), |joiner| Ok(as_text(&joiner)?.len()))
}

/// The arguments of Jinja's `slice` and `batch`, which make as many lists or items as they are told.
pub fn check_count(arguments: &[Value]) -> Result<(), Error> {
    let is_large =
        |count: &Value| i64::try_from(count.clone()).is_ok_and(|count| count > limits::TEMPLATE_ITEMS as i64);
    match arguments.get(1).is_some_and(is_large) {
        true => Err(too_large("a list becomes too long")),
        false => Ok(()),
    }
}

/// So many blanks, if a text has room for them.
pub fn blanks(count: usize) -> Result<String, Error> {
    match count as u64 > limits::PROMPT {
        true => Err(Error::new(ErrorKind::InvalidOperation, format!("{count} blanks are too many"))),
        false => Ok(" ".repeat(count)),
    }
}
