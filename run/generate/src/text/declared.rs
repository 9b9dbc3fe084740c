//! Adds the tokens that a tokenizer's configuration declares and `tokenizer.json` lacks. The order, and the
//! properties of a token that is only a text, are those of `TokenizersBackend` in Hugging Face transformers
//! 5.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use errors::{escaped, shortened};
use irpa::ModelFiles;
use serde_json::{Map, Value};
use tokenizers::{AddedToken, Tokenizer};

use crate::GenerateError;
use crate::model_file::read_keys;

const CONFIG: &str = "tokenizer_config.json";
const MAP: &str = "special_tokens_map.json";
const ADDED: &str = "added_tokens.json";
const DECODER: &str = "added_tokens_decoder";
const EXTRA: &str = "extra_special_tokens";
const ADDITIONAL: &str = "additional_special_tokens";
const NAMED: &str = "model_specific_special_tokens";
const SPLIT: &str = "split_special_tokens";

/// The keys that declare one token each, in the order in which new tokens get ids.
const STANDARD: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// An error message shows at most this number of characters of an invalid value.
const SHOWN: usize = 300;

/// The tokens that the files beside a `tokenizer.json` declare.
#[derive(Default)]
pub(super) struct Declared {
    /// Tokens with ids. The ids only set the order in which the tokens are added.
    numbered: BTreeMap<i64, AddedToken>,
    /// Whether a token of `tokenizer.json` with the same id replaces a token in `numbered`.
    yields: bool,
    /// The tokens of keys such as `eos_token`, which are special.
    named: Vec<AddedToken>,
    extra: Vec<AddedToken>,
    /// Whether the tokenizer spells special tokens in a text like other text.
    splits: bool,
}

impl Declared {
    /// Reads the declared tokens of a model folder; none for a GGUF file, whose vocabulary marks them itself.
    pub fn read(model: &ModelFiles) -> Result<Self, GenerateError> {
        if model.is_gguf() {
            return Ok(Self::default());
        }
        let wanted =
            |key: &str| [DECODER, EXTRA, ADDITIONAL, NAMED, SPLIT].contains(&key) || key.ends_with("_token");
        let config = read_keys(model, CONFIG, wanted)?.unwrap_or_default();
        let mut files = Files::new(model.path(), config)?;
        let decoder = files.config.remove(DECODER);
        let yields = decoder.is_none();
        let numbered = match decoder {
            Some(decoder) => files.numbered(&decoder)?,
            None => {
                files.merge(read_keys(model, MAP, |_| true)?)?;
                files.added(read_keys(model, ADDED, |_| true)?)?
            }
        };
        let splits = match files.config.get(SPLIT) {
            None | Some(Value::Null) => false,
            Some(Value::Bool(splits)) => *splits,
            Some(found) => return Err(files.wrong(CONFIG, SPLIT, found, "true or false")),
        };
        Ok(Self { numbered, yields, named: files.named_tokens()?, extra: files.extra, splits })
    }

    /// Adds the declared tokens. Known texts keep their ids, all others get the next free ids.
    pub fn add_to(self, tokenizer: &mut Tokenizer) -> tokenizers::Result<()> {
        let Self { mut numbered, yields, named, extra, splits } = self;
        tokenizer.set_encode_special_tokens(splits);
        let known = tokenizer.get_added_tokens_decoder();
        if yields {
            numbered.retain(|id, _| u32::try_from(*id).is_ok_and(|id| !known.contains_key(&id)));
        }
        let names: HashSet<String> = named.iter().map(|token| token.content.clone()).collect();
        let present: HashSet<String> =
            known.into_values().chain(numbered.values().cloned()).map(|token| token.content).collect();
        let others = named.into_iter().chain(extra).filter(|token| !present.contains(&token.content));
        let tokens = numbered.into_values().chain(others).map(|mut token| {
            token.special |= names.contains(&token.content);
            token
        });
        tokenizer.add_tokens(tokens.collect::<Vec<_>>())?;
        Ok(())
    }
}

/// The declarations of one model, in the order in which transformers reads the keys.
struct Files<'a> {
    model: &'a Path,
    config: Map<String, Value>,
    /// Tokens with names of the model's own, such as `image_token`.
    named: Vec<(String, AddedToken)>,
    extra: Vec<AddedToken>,
}

impl<'a> Files<'a> {
    fn new(model: &'a Path, mut config: Map<String, Value>) -> Result<Self, GenerateError> {
        let is_empty = |value: Option<&Value>| match value {
            None | Some(Value::Null) => true,
            Some(Value::Array(list)) => list.is_empty(),
            Some(Value::Object(map)) => map.is_empty(),
            Some(_) => false,
        };
        if is_empty(config.get(EXTRA))
            && let Some(additional) = config.remove(ADDITIONAL)
        {
            config.insert(EXTRA.into(), additional);
        }
        let mut files = Self { model, config, named: Vec::new(), extra: Vec::new() };
        let own = |(key, value): (&String, &Value)| {
            (key.ends_with("_token") && !STANDARD.contains(&key.as_str()) && value.is_string())
                .then(|| key.clone())
        };
        let own: Vec<String> = files.config.iter().filter_map(own).collect();
        for key in own {
            let value = files.config.remove(&key).unwrap_or_default();
            files.name(CONFIG, key, &value)?;
        }
        for key in [EXTRA, NAMED] {
            if let Some(value) = files.config.remove(key) {
                files.extend(CONFIG, key, value)?;
            }
        }
        Ok(files)
    }

    fn name(&mut self, file: &'static str, key: String, value: &Value) -> Result<(), GenerateError> {
        let token = self.token(file, EXTRA, value)?;
        self.named.retain(|(known, _)| *known != key);
        self.named.push((key, token));
        Ok(())
    }

    /// Takes the value of `extra_special_tokens`: a list of tokens, or an object with a name for each token.
    fn extend(&mut self, file: &'static str, key: &'static str, value: Value) -> Result<(), GenerateError> {
        match value {
            Value::Null => {}
            Value::Array(list) if key == EXTRA => {
                for value in &list {
                    let token = self.token(file, key, value)?;
                    if !self.extra.contains(&token) {
                        self.extra.push(token);
                    }
                }
            }
            Value::Object(map) => {
                for (name, value) in map {
                    self.name(file, name, &value)?;
                }
            }
            found => return Err(self.wrong(file, key, &found, "a list or an object of tokens")),
        }
        Ok(())
    }

    /// Takes the keys of a `special_tokens_map.json`, which replace the keys of the configuration.
    fn merge(&mut self, map: Option<Map<String, Value>>) -> Result<(), GenerateError> {
        for (key, value) in map.unwrap_or_default() {
            // The value of a key is an object for one token, or `extra_special_tokens` by name.
            let value = match value {
                Value::Object(mut token) if key != EXTRA => {
                    token.insert("special".into(), true.into());
                    token.into()
                }
                value => value,
            };
            match key.as_str() {
                EXTRA => self.extend(MAP, EXTRA, special(value))?,
                ADDITIONAL if self.extra.is_empty() => self.extend(MAP, EXTRA, special(value))?,
                ADDITIONAL => {}
                _ => drop(self.config.insert(key, value)),
            }
        }
        Ok(())
    }

    /// Reads the tokens of an `added_tokens.json`, which maps texts to ids.
    fn added(&self, added: Option<Map<String, Value>>) -> Result<BTreeMap<i64, AddedToken>, GenerateError> {
        let standard = STANDARD.iter().filter_map(|key| content(self.config.get(*key)?));
        let named = self.named.iter().map(|(_, token)| token.content.as_str());
        let extra = self.extra.iter().map(|token| token.content.as_str());
        let special: HashSet<&str> = standard.chain(named).chain(extra).collect();
        let entry = |(text, id): (&String, &Value)| {
            let id = id.as_i64().ok_or_else(|| self.wrong(ADDED, "tokens", id, "a token id"))?;
            Ok((id, AddedToken::from(text.clone(), special.contains(text.as_str()))))
        };
        added.iter().flatten().map(entry).collect()
    }

    /// Reads the value of `added_tokens_decoder`, which maps ids to tokens.
    fn numbered(&self, decoder: &Value) -> Result<BTreeMap<i64, AddedToken>, GenerateError> {
        let expected = "an object of tokens by their ids";
        let wrong = |found: &Value| self.wrong(CONFIG, DECODER, found, expected);
        let entries = decoder.as_object().ok_or_else(|| wrong(decoder))?;
        let entry = |(id, value): (&String, &Value)| {
            let id = id.trim().parse().map_err(|_| wrong(decoder))?;
            match value {
                Value::Object(_) => Ok((id, self.token(CONFIG, DECODER, value)?)),
                found => Err(wrong(found)),
            }
        };
        entries.iter().map(entry).collect()
    }

    /// Returns the tokens of all keys such as `eos_token`, in the order of their new ids.
    fn named_tokens(&mut self) -> Result<Vec<AddedToken>, GenerateError> {
        let mut tokens = Vec::new();
        for key in STANDARD {
            if let Some(value) = self.config.remove(key).filter(|value| !value.is_null()) {
                tokens.push(self.token(CONFIG, key, &value)?);
            }
        }
        for (_, value) in self.config.iter().filter(|(key, _)| key.ends_with("_token")) {
            if content(value).is_some() {
                tokens.push(self.token(CONFIG, EXTRA, value)?);
            }
        }
        tokens.extend(self.named.drain(..).map(|(_, token)| token));
        Ok(tokens)
    }

    /// Converts a declaration to a token. A token that is only a text is special.
    fn token(
        &self,
        file: &'static str,
        key: &'static str,
        value: &Value,
    ) -> Result<AddedToken, GenerateError> {
        let expected = "a text, or an object with `content` and flags";
        let wrong = || self.wrong(file, key, value, expected);
        let Some(text) = content(value) else { return Err(wrong()) };
        let flag = |name: &str, default| match value.get(name) {
            None | Some(Value::Null) => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(wrong()),
        };
        let special = flag("special", value.is_string())?;
        Ok(AddedToken {
            content: text.to_owned(),
            single_word: flag("single_word", false)?,
            lstrip: flag("lstrip", false)?,
            rstrip: flag("rstrip", false)?,
            normalized: flag("normalized", !special)?,
            special,
        })
    }

    fn wrong(&self, file: &str, key: &'static str, found: &Value, expected: &'static str) -> GenerateError {
        let path: PathBuf = self.model.join(file);
        let found = escaped(&shortened(found.to_string(), SHOWN));
        GenerateError::Key { path, key, found, expected }
    }
}

/// Marks the tokens of a list as special.
fn special(value: Value) -> Value {
    let mark = |value: Value| match value {
        Value::Object(mut token) => {
            token.insert("special".into(), true.into());
            token.into()
        }
        value => value,
    };
    match value {
        Value::Array(list) => list.into_iter().map(mark).collect(),
        value => value,
    }
}

/// Returns the text of a declared token.
fn content(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}
