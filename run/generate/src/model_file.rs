//! Reads the tokenizer files and configuration files of a model, from the model's folder or from a GGUF file.

use std::sync::Arc;
use std::{fmt, io};

use errors::{FileError, WithPath as _};
use files::limits;
use irpa::ModelFiles;
use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::GenerateError;
use crate::gguf::{TOKENIZER, made};

/// Reads selected keys from a JSON file, or `None` without the file. Skips the others, because a
/// `tokenizer_config.json` can list tens of thousands of tokens.
pub(crate) fn read_keys(
    model: &ModelFiles,
    name: &str,
    wanted: fn(&str) -> bool,
) -> Result<Option<Map<String, Value>>, GenerateError> {
    let Some(text) = json_text(model, name)? else { return Ok(None) };
    let bad = |source| GenerateError::Json { path: model.path().join(name), source };
    let found = files::with_json(&text, |text| {
        let mut json = serde_json::Deserializer::from_str(text);
        let found = Wanted(wanted).deserialize(&mut json)?;
        json.end()?;
        Ok(found.into_iter().map(|(key, value)| (key, value.get().to_owned())).collect::<Vec<_>>())
    });
    let found = found.map_err(bad)?;
    let all: String = found.iter().flat_map(|(_, value)| [",", value]).collect();
    files::check_json(&all).with_path("read", &model.path().join(name))?;
    let value = |(key, value): (String, String)| Ok((key, serde_json::from_str(&value)?));
    Ok(Some(found.into_iter().map(value).collect::<Result<_, _>>().map_err(bad)?))
}

/// Parses only selected keys of a JSON object, and returns their values as unparsed JSON.
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
            if self.0(&key) {
                found.push((key, map.next_value()?))
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// Reads a small JSON file once for all its readers.
pub(crate) fn json_text(model: &ModelFiles, name: &str) -> Result<Option<Arc<str>>, GenerateError> {
    model.text(name, || match model.gguf()? {
        Some(file) => Ok(made(model, file, name)?.map(|json| json.to_string())),
        None => found(files::json_text(&model.path().join(name), limits::CONFIG)),
    })
}

/// Creates the content of the Hugging Face file `name` from the metadata of a GGUF file. The result is `None`
/// if the metadata do not contain the content of the file `name`, or if the model is no GGUF file.
pub fn gguf_text(files: impl Into<ModelFiles>, name: &str) -> Result<Option<String>, GenerateError> {
    let files = files.into();
    match files.gguf()? {
        Some(file) if name == TOKENIZER => Ok(made(&files, file, name)?.map(|json| json.to_string())),
        Some(_) => Ok(json_text(&files, name)?.map(|text| text.as_ref().to_owned())),
        None => Ok(None),
    }
}

/// `None` if there is no file.
pub(crate) fn found(text: Result<String, FileError>) -> Result<Option<String>, GenerateError> {
    match text {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(None),
        text => Ok(Some(text?)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use errors::WithCauses;

    use super::*;
    use crate::stop_tokens;

    /// Python writes the files of a model, and Python's JSON can contain `Infinity` and `NaN`.
    #[test]
    fn numbers_that_are_not_finite_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("generation_config.json", r#"{"max_time": Infinity, "eos_token_id": [2, 7]}"#);
        assert_eq!(stop_tokens(folder.path()).unwrap(), [2, 7]);
        write("generation_config.json", r#"{"eos_token_id": [2, NaN]}"#);
        let said = stop_tokens(folder.path()).unwrap_err().to_string();
        assert!(said.contains("is `[2,NaN]`, expected a token id"), "{said}");
        write("generation_config.json", r#"{"max_time": -Infinity, "eos_token_id" 2}"#);
        let said = WithCauses(&stop_tokens(folder.path()).unwrap_err()).to_string();
        assert!(said.contains("expected `:` at line 1 column 40"), "{said}");

        write("tokenizer_config.json", r#"{"model_max_length": Infinity, "bos_token": "Infinity"}"#);
        let wanted = |key: &str| key == "bos_token";
        let found = read_keys(&folder.path().into(), "tokenizer_config.json", wanted).unwrap().unwrap();
        assert_eq!(Value::Object(found), serde_json::json!({ "bos_token": "Infinity" }));
        write("special_tokens_map.json", r#"{"a": NaN, "bos_token": "NaN"}"#);
        let found = read_keys(&folder.path().into(), "special_tokens_map.json", |_| true).unwrap().unwrap();
        assert_eq!(found["bos_token"], "NaN");
    }
}
