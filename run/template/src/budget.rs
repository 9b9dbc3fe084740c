//! Limits the size of a template's values, and checks operations that enlarge values.

use files::limits;
use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use crate::generator::Generator;
use crate::{globals, invalid};

/// The limits on the size of a template's value.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// The largest total number of bytes in a value's strings. The total includes strings within
    /// lists and dictionaries.
    pub bytes: usize,
}

impl Budget {
    /// Returns the value if its size is within the limits.
    pub fn bounded(self, value: Value) -> Result<Value, Error> {
        let (mut bytes, mut items) = (self.bytes, limits::TEMPLATE_ITEMS);
        match takes(&value, 0, &mut bytes, &mut items) {
            Some(()) => Ok(value),
            None => Err(too_large()),
        }
    }

    /// Checks that a text of `bytes` bytes is within the limits.
    pub fn check_bytes(self, bytes: usize) -> Result<(), Error> {
        if bytes > self.bytes { Err(too_large()) } else { Ok(()) }
    }

    /// Checks that joining a list with a separator of `between` bytes stays within the limits.
    pub fn check_join(self, list: &Value, between: usize) -> Result<(), Error> {
        self.bounded(list.clone())?;
        let items = Generator::rest(list).map(|rest| rest.len()).or(list.len());
        let items = items.unwrap_or(limits::TEMPLATE_ITEMS).saturating_mul(between);
        if items > self.bytes { Err(invalid("a list becomes too long as a text")) } else { Ok(()) }
    }

    /// Checks that the values in a formatted string stay within the limits.
    pub fn check_format(self, text: &str, values: &[Value]) -> Result<(), Error> {
        // Each placeholder could insert every value.
        let (mut left, mut items) = (self.bytes, limits::TEMPLATE_ITEMS);
        let fits = values.iter().try_for_each(|value| takes(value, 0, &mut left, &mut items));
        let names = text.matches(['%', '{']).count();
        if fits.is_none() || (self.bytes - left).saturating_mul(names) > self.bytes {
            Err(invalid("a text becomes too long where values are put into it"))
        } else {
            Ok(())
        }
    }

    /// Checks that replacing each occurrence of `from` by `to` stays within the limits.
    pub fn check_replace(self, text: &str, from: &str, to: &str) -> Result<(), Error> {
        // The empty string occurs between any two characters and at the two ends.
        let count = if from.is_empty() { text.len() + 1 } else { text.matches(from).count() };
        if count.saturating_mul(to.len()) > self.bytes {
            Err(invalid("a text becomes too long where a part is replaced"))
        } else {
            Ok(())
        }
    }
}

/// The error for a value that exceeds the limits.
pub fn too_large() -> Error {
    invalid("a value becomes too large or is nested too deep")
}

/// Subtracts the size of a value from the remaining limits. Returns `None` if the value exceeds the limits.
fn takes(value: &Value, depth: usize, bytes: &mut usize, items: &mut usize) -> Option<()> {
    *items = items.checked_sub(1)?;
    if let Some(text) = value.as_str() {
        *bytes = bytes.checked_sub(text.len())?;
        return Some(());
    }
    if let Some(rest) = Generator::rest(value).or_else(|| globals::inside(value)) {
        return if depth > limits::TEMPLATE_DEPTH {
            None
        } else {
            rest.iter().try_for_each(|item| takes(item, depth + 1, bytes, items))
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

/// Checks the first argument of Jinja's `slice` and `batch`. The first argument of `slice` is a
/// number of lists, and the first argument of `batch` is a number of items.
pub fn check_count(arguments: &[Value]) -> Result<(), Error> {
    let is_large =
        |count: &Value| i64::try_from(count.clone()).is_ok_and(|count| count > limits::TEMPLATE_ITEMS as i64);
    if arguments.get(1).is_some_and(is_large) { Err(invalid("a list becomes too long")) } else { Ok(()) }
}

/// A string of `count` spaces. Returns an error if the string exceeds the limits.
pub fn blanks(count: usize) -> Result<String, Error> {
    repeated(" ", count)
}

/// A string repeated `count` times. Returns an error if the result exceeds the limits.
pub fn repeated(text: &str, count: usize) -> Result<String, Error> {
    check_width(text.len().saturating_mul(count))?;
    Ok(text.repeat(count))
}

/// Checks that a padded string of `bytes` bytes is within the limits.
pub fn check_width(bytes: usize) -> Result<(), Error> {
    if bytes as u64 > limits::PROMPT { Err(invalid("a text becomes too wide")) } else { Ok(()) }
}

/// Collects the items of an iterator. Returns an error if the number of items exceeds the limit.
pub fn items(items: impl Iterator<Item = Value>) -> Result<Vec<Value>, Error> {
    let items: Vec<_> = items.take(limits::TEMPLATE_ITEMS + 1).collect();
    if items.len() > limits::TEMPLATE_ITEMS { Err(invalid("a list becomes too long")) } else { Ok(items) }
}

/// Collects the items of an iterator to a list value. Returns an error if the number of items
/// exceeds the limit.
pub fn list(items: impl Iterator<Item = Value>) -> Result<Value, Error> {
    self::items(items).map(Value::from)
}
