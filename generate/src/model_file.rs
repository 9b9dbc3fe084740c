//! The files of a model that say something about its texts: in its folder, or made of a GGUF file.

use std::path::Path;
use std::{fmt, io};

use errors::{FileError, WithPath as _};
use files::{StandIn, limits};
use irpa::Gguf;
use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::GenerateError;
use crate::gguf::gguf_text;

/// Reads a JSON file of a model; `None` when there is none.
pub(crate) fn read_json(model: &Path, name: &str) -> Result<Option<Value>, GenerateError> {
    let Some(text) = read_file(model, name, files::read_json)? else { return Ok(None) };
    let value = serde_json::from_str(&text)
        .map_err(|source| GenerateError::Json { path: model.join(name), source })?;
    Ok(Some(value))
}

/// Reads those keys of a JSON object in a file of a model that are wanted; `None` when there is no file. Of the others
/// nothing is made: a `tokenizer_config.json` may list tens of thousands of tokens.
pub(crate) fn read_keys(
    model: &Path,
    name: &str,
    wanted: fn(&str) -> bool,
) -> Result<Option<Map<String, Value>>, GenerateError> {
    let Some(text) = read_text(model, name, limits::CONFIG)? else { return Ok(None) };
    let bad = |source| GenerateError::Json { path: model.join(name), source };
    let mut json = serde_json::Deserializer::from_str(&text);
    let found = Wanted(wanted).deserialize(&mut json).and_then(|found| json.end().map(|()| found));
    let found = found.map_err(bad)?;
    let all: String = found.iter().flat_map(|(_, value)| [",", value.get()]).collect();
    files::check_json(&all).with_path("read", &model.join(name))?;
    let value = |(key, value): (String, &RawValue)| Ok((key, serde_json::from_str(value.get())?));
    Ok(Some(found.into_iter().map(value).collect::<Result<_, _>>().map_err(bad)?))
}

/// The wanted entries of an object, as they are written.
struct Wanted(fn(&str) -> bool);

impl<'de> DeserializeSeed<'de> for Wanted {
    type Value = Vec<(String, &'de RawValue)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Wanted {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            match self.0(&key) {
                true => found.push((key, map.next_value()?)),
                false => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }
}

/// Reads a text file of a model, of at most so many bytes; `None` when there is none.
pub(crate) fn read_text(model: &Path, name: &str, limit: u64) -> Result<Option<String>, GenerateError> {
    read_file(model, name, |path| files::read_text(path, limit))
}

fn read_file(
    model: &Path,
    name: &str,
    read: impl FnOnce(&Path) -> Result<String, FileError>,
) -> Result<Option<String>, GenerateError> {
    if Gguf::is_at(model) {
        return gguf_text(model, name);
    }
    match read(&model.join(name)) {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(None),
        read => {
            let text = read?;
            // A template may be empty.
            if text.is_empty() && name.ends_with(".json") {
                return Err(StandIn::Empty.error()).with_path("read", &model.join(name)).map_err(Into::into);
            }
            Ok(Some(text))
        }
    }
}
