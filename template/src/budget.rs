//! How much of a value there may be, and what would make more of it.

use std::borrow::Cow;

use files::limits;
use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use crate::generator::Generator;
use crate::{globals, invalid};

/// How much of a value there may be.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Bytes of texts, those within lists and dictionaries included.
    pub bytes: usize,
}

impl Budget {
    /// The value, if there is room for it.
    pub fn bounded(self, value: Value) -> Result<Value, Error> {
        let (mut bytes, mut items) = (self.bytes, limits::TEMPLATE_ITEMS);
        match takes(&value, 0, &mut bytes, &mut items) {
            Some(()) => Ok(value),
            None => Err(invalid("a value becomes too large or is nested too deep")),
        }
    }

    /// Whether a list may be joined with a text between its items.
    pub fn check_join(self, list: &Value, between: usize) -> Result<(), Error> {
        self.bounded(list.clone())?;
        let items = Generator::rest(list).map(|rest| rest.len()).or(list.len());
        let items = items.unwrap_or(limits::TEMPLATE_ITEMS).saturating_mul(between);
        if items > self.bytes { Err(invalid("a list becomes too long as a text")) } else { Ok(()) }
    }

    /// Whether what a format makes of values has room, and its keys are ASCII: minijinja 3.0.5 panics in the middle of another
    /// character, that of a key without end too.
    pub fn check_format(self, text: &str, values: &[Value]) -> Result<(), Error> {
        let without_signs = text.replace("%%", "");
        let mut keys = without_signs.split("%(").skip(1).filter_map(|rest| rest.split(')').next());
        if let Some(key) = keys.find(|key| !key.is_ascii()) {
            let message = format!("a key in a format is not ASCII, which is not supported: `{key}`");
            return Err(invalid(message));
        }
        // All the widths that it names, and all the values wherever it may name one.
        let numbers = text.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty());
        let wide = numbers.map(|number| number.parse().unwrap_or(usize::MAX)).fold(0, usize::saturating_add);
        check_width(wide)?;
        let (mut left, mut items) = (self.bytes, limits::TEMPLATE_ITEMS);
        let fits = values.iter().try_for_each(|value| takes(value, 0, &mut left, &mut items));
        let names = text.matches(['%', '{']).count();
        match fits.is_none() || (self.bytes - left).saturating_mul(names) > self.bytes {
            true => Err(invalid("a text becomes too long where values are put into it")),
            false => Ok(()),
        }
    }

    /// Whether each occurrence of a text may be replaced by another.
    pub fn check_replace(self, text: &str, from: &str, to: &str) -> Result<(), Error> {
        // Nothing stands between any two characters, and at both ends.
        let count = if from.is_empty() { text.len() + 1 } else { text.matches(from).count() };
        match count.saturating_mul(to.len()) > self.bytes {
            true => Err(invalid("a text becomes too long where a part is replaced")),
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
    if let Some(rest) = Generator::rest(value).or_else(|| globals::inside(value)) {
        return match depth > limits::TEMPLATE_DEPTH {
            true => None,
            false => rest.iter().try_for_each(|item| takes(item, depth + 1, bytes, items)),
        };
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

/// What stands between others or replaces them, as a text. A list or a dictionary has no place there, and its text no end.
pub fn as_text(value: &Value) -> Result<Cow<'_, str>, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.as_str().unwrap_or_default().into()),
        ValueKind::Number | ValueKind::Bool | ValueKind::None | ValueKind::Undefined => {
            Ok(value.to_string().into())
        }
        kind => Err(invalid(format!("expected a text, found a {kind}"))),
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
        true => Err(invalid("a list becomes too long")),
        false => Ok(()),
    }
}

/// So many blanks, if a text has room for them.
pub fn blanks(count: usize) -> Result<String, Error> {
    repeated(" ", count)
}

/// A text so many times, if there is room for it.
pub fn repeated(text: &str, count: usize) -> Result<String, Error> {
    check_width(text.len().saturating_mul(count))?;
    Ok(text.repeat(count))
}

/// Whether so many bytes may be put into a text to make it wide.
pub fn check_width(bytes: usize) -> Result<(), Error> {
    if bytes as u64 > limits::PROMPT { Err(invalid("a text becomes too wide")) } else { Ok(()) }
}

/// The items of a list, if they are not too many.
pub fn items(items: impl Iterator<Item = Value>) -> Result<Vec<Value>, Error> {
    let items: Vec<_> = items.take(limits::TEMPLATE_ITEMS + 1).collect();
    if items.len() > limits::TEMPLATE_ITEMS { Err(invalid("a list becomes too long")) } else { Ok(items) }
}

/// A list, if it does not become too long.
pub fn list(items: impl Iterator<Item = Value>) -> Result<Value, Error> {
    self::items(items).map(Value::from)
}
