//! Reads `config.json` key by key. If no code reads a key and no list of ignored keys contains the
//! key, Tracewright reports an error.

mod base;
mod error;
mod storage;

use std::cell::RefCell;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use errors::{FileError, WithPath as _};
use files::limits;
use irpa::ModelFiles;
use ops::ElementType;
use serde_json::{Map, Value};

pub(crate) use base::read_base;
pub use error::{ConfigError, KeyProblem};
pub(crate) use storage::{is_mxfp4, read_storage};

/// Configuration keys that most `config.json` files contain and that do not affect the computation.
pub const IGNORED: &[&str] = &[
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "bos_token_id",
    "eos_token_id",
    "initializer_range",
    "is_llama_config",
    "model_type",
    "pad_token_id",
    "transformers_version",
    "use_cache",
];

/// All other keys have at most [`limits::EXTENT`].
const AT_MOST: &[(&str, usize)] = &[
    ("num_hidden_layers", limits::LAYERS),
    ("n_layer", limits::LAYERS),
    ("head_dim", limits::HEAD),
    ("max_position_embeddings", limits::POSITIONS),
];

/// An error message shows at most this number of characters of an invalid value.
const SHOWN: usize = 200;

/// Reads a file of a folder once for all its readers.
pub(crate) fn text_within(files: &ModelFiles, name: &str, path: &Path) -> Result<Arc<str>, FileError> {
    let text = files.text(name, || files::json_text(path, limits::CONFIG).map(Some))?.unwrap_or_default();
    files::check_json(&text).with_path("read", path)?;
    Ok(text)
}

pub(crate) fn parse(path: &Path, text: &str) -> Result<Value, ConfigError> {
    let syntax = |e: serde_json::Error| ConfigError::Syntax { path: path.to_owned(), reason: e.to_string() };
    files::parse_json(text).map_err(syntax)
}

/// A JSON object whose keys are read one by one. At the end, an unread key is an error.
pub struct Keys {
    path: PathBuf,
    /// The folder that the file was read from.
    folder: Option<ModelFiles>,
    /// The path of a nested object, followed by a dot, for example `rope_scaling.`.
    prefix: String,
    map: Map<String, Value>,
    known: RefCell<Vec<&'static str>>,
    problems: RefCell<Vec<KeyProblem>>,
}

impl Keys {
    /// Reads the file, or the file `config.json` in this directory.
    pub fn read(files: impl Into<ModelFiles>) -> Result<Self, ConfigError> {
        let files = files.into();
        let path = files.path();
        if path.is_dir() {
            Self::within(&files, "config.json")
        } else {
            Self::parse(path, &files::read_json(path)?)
        }
    }

    /// Reads the content of a `config.json`. Errors name `path`.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        match parse(path, text)? {
            Value::Object(map) => Ok(Self::of(path, map)),
            other => {
                let reason = format!("found {}", kind(&other));
                Err(ConfigError::Syntax { path: path.to_owned(), reason })
            }
        }
    }

    /// Reads a file in a folder.
    pub(crate) fn within(files: &ModelFiles, name: &str) -> Result<Self, ConfigError> {
        let path = files.path().join(name);
        Ok(Self { folder: Some(files.clone()), ..Self::parse(&path, &text_within(files, name, &path)?)? })
    }

    /// For the other files in the folder of this file.
    pub(crate) fn folder(&self) -> ModelFiles {
        let parent = || self.path.parent().unwrap_or(Path::new("")).into();
        self.folder.clone().unwrap_or_else(parent)
    }

    /// Creates a reader for the keys of a JSON object. Error messages name the file `path`.
    pub(crate) fn of(path: &Path, map: Map<String, Value>) -> Self {
        Self::new(path, "", map)
    }

    fn new(path: &Path, prefix: &str, map: Map<String, Value>) -> Self {
        let (known, problems) = (RefCell::default(), RefCell::default());
        Self { path: path.into(), folder: None, prefix: prefix.into(), map, known, problems }
    }

    /// Removes a key that was read; other code treats it as missing.
    #[must_use]
    pub fn without(mut self, key: &str) -> Self {
        self.map.remove(key);
        self
    }

    /// Path of the file, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The value of `key`, or `None` if the key is missing or null.
    pub fn get(&self, key: &'static str) -> Option<&Value> {
        self.known.borrow_mut().push(key);
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn is_known(&self, key: &str) -> bool {
        self.known.borrow().contains(&key)
    }

    /// Marks keys that are no error, although nothing reads their values.
    pub fn ignore(&self, keys: &[&'static str]) {
        self.known.borrow_mut().extend(keys);
    }

    /// Records that the value of a key is invalid.
    pub fn refuse(&self, key: &str, found: impl ToString, expected: impl Into<String>) {
        let found = files::as_written(&found.to_string());
        let (key, found) = (self.name(key), errors::shortened(found, SHOWN));
        self.problems.borrow_mut().push(KeyProblem::Value { key, found, expected: expected.into() });
    }

    /// Whether this reader has recorded any problem.
    pub fn has_problems(&self) -> bool {
        !self.problems.borrow().is_empty()
    }

    fn typed<T>(
        &self,
        key: &'static str,
        expected: impl Into<String>,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.get(key)?;
        let typed = read(value);
        if typed.is_none() {
            self.refuse(key, value, expected);
        }
        typed
    }

    fn required<T: Default>(&self, key: &'static str, expected: &'static str, value: Option<T>) -> T {
        if value.is_none() && self.map.get(key).is_none_or(Value::is_null) {
            self.problems.borrow_mut().push(KeyProblem::Missing { key: self.name(key), expected });
        }
        value.unwrap_or_default()
    }

    /// Reads a configuration key whose value is a positive integer. Returns `None` if the key is missing.
    pub fn optional_count(&self, key: &'static str) -> Option<usize> {
        let own = AT_MOST.iter().find(|(name, _)| *name == key);
        let most = own.map_or(limits::EXTENT, |(_, most)| *most);
        let read = |value: &Value| value.as_u64().filter(|&n| n > 0 && n <= most as u64).map(|n| n as usize);
        self.typed(key, format!("a positive integer, at most {most}"), read)
    }

    /// A positive integer. A missing key is a problem.
    pub fn count(&self, key: &'static str) -> usize {
        self.required(key, "a positive integer", self.optional_count(key)).max(1)
    }

    /// `default` if the key is missing; the value can be null.
    fn nullable<T>(&self, key: &'static str, default: Option<T>, read: impl Fn() -> Option<T>) -> Option<T> {
        if self.map.contains_key(key) {
            read()
        } else {
            self.get(key);
            default
        }
    }

    /// A positive integer, `None` for null, and `default` for a missing key.
    pub fn nullable_count(&self, key: &'static str, default: Option<usize>) -> Option<usize> {
        self.nullable(key, default, || self.optional_count(key))
    }

    /// A positive number, `None` for null, and `default` for a missing key.
    pub fn nullable_number(&self, key: &'static str, default: Option<f64>) -> Option<f64> {
        self.nullable(key, default, || self.optional_number(key))
    }

    /// Reads `sliding_window_pattern`: with n, one of every n layers has no window.
    pub fn sliding_period(&self) -> Option<usize> {
        let names = ["sliding_window_pattern", "_sliding_window_pattern"];
        let [new, old] = names.map(|name| (name, self.optional_count(name)));
        self.agreed(new, old)
    }

    /// The window of each layer, or `None` if it sees all positions. `layer_types` decides which layers have
    /// `window`, or else `sliding`.
    pub fn windows(
        &self,
        layers: usize,
        window: Option<usize>,
        sliding: impl Fn(usize) -> bool,
    ) -> Arc<[Option<usize>]> {
        let types = self.layer_types(layers);
        let of_layer = |layer| match &types {
            Some(types) => types[layer] == "sliding_attention",
            None => sliding(layer),
        };
        let sliding: Vec<bool> = (0..layers).map(of_layer).collect();
        if window.is_none() && sliding.contains(&true) {
            self.refuse("sliding_window", "null", "a positive integer: some layers look through a window");
        }
        sliding.into_iter().map(|sliding| window.filter(|_| sliding)).collect()
    }

    /// Reads `layer_types`: `full_attention` or `sliding_attention` for each layer.
    pub fn layer_types(&self, layers: usize) -> Option<Vec<String>> {
        self.kinds_of_layers("layer_types", layers, &["full_attention", "sliding_attention"])
    }

    /// One of the `kinds` for each layer; `None` if the key is missing.
    pub fn kinds_of_layers(&self, key: &'static str, layers: usize, kinds: &[&str]) -> Option<Vec<String>> {
        let expected = format!("a list of {layers} of `{}`", kinds.join("` and `"));
        let value = self.get(key)?;
        let known = |name: &&str| kinds.contains(name);
        let types = value.as_array().map(Vec::as_slice).unwrap_or_default().iter();
        let types: Vec<String> = types.filter_map(Value::as_str).filter(known).map(str::to_owned).collect();
        if types.len() != layers || value.as_array().map(Vec::len) != Some(layers) {
            self.refuse(key, value, expected);
            return None;
        }
        Some(types)
    }

    /// Reads a list of layer indices, and calls `found` for each index. Returns whether the key exists.
    pub fn layers(&self, key: &'static str, layers: usize, mut found: impl FnMut(usize)) -> bool {
        let Some(listed) = self.get(key) else { return false };
        for index in listed.as_array().map_or(std::slice::from_ref(listed), Vec::as_slice) {
            match index.as_u64().and_then(|index| usize::try_from(index).ok()).filter(|&index| index < layers)
            {
                Some(index) => found(index),
                None => self.refuse(key, listed, format!("a list of layers, from 0 to {}", layers - 1)),
            }
        }
        true
    }

    /// An integer of 0 or more; `None` if the key is missing.
    pub fn optional_integer(&self, key: &'static str) -> Option<usize> {
        let read = |value: &Value| value.as_u64().filter(|&n| n <= u32::MAX.into()).map(|n| n as usize);
        self.typed(key, "an integer, at least 0", read)
    }

    /// Reads a configuration key whose value is a positive number. Returns `None` if the key is missing.
    pub fn optional_number(&self, key: &'static str) -> Option<f64> {
        self.typed(key, "a positive number", |value| value.as_f64().filter(|&x| x > 0.0 && x.is_finite()))
    }

    /// A positive number, `default` for a missing key. Null is an error.
    pub fn number_or(&self, key: &'static str, default: f64) -> f64 {
        let number = self.optional_number(key);
        self.refuse_null(key, "a positive number");
        number.unwrap_or(default)
    }

    /// HF transformers does not replace null by the default.
    fn refuse_null(&self, key: &'static str, expected: &str) {
        if self.map.get(key).is_some_and(Value::is_null) {
            self.refuse(key, "null", expected);
        }
    }

    /// A positive number. A missing key is a problem.
    pub fn number(&self, key: &'static str) -> f64 {
        self.required(key, "a positive number", self.optional_number(key))
    }

    /// `default` for a missing key. Null is false in Python, so it is an error if the default is true.
    pub fn flag(&self, key: &'static str, default: bool) -> bool {
        if default {
            self.refuse_null(key, "true or false");
        }
        self.typed(key, "true or false", Value::as_bool).unwrap_or(default)
    }

    /// Checks that a boolean key has the value `position`, because Tracewright implements only this value.
    pub fn always(&self, key: &'static str, position: bool) {
        if self.flag(key, position) != position {
            self.refuse(key, !position, position.to_string());
        }
    }

    /// Reads a string. Returns `None` if the key is missing.
    pub fn optional_text(&self, key: &'static str) -> Option<String> {
        self.typed(key, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// Checks that the string at `key` is one of the `accepted` values. The key may be missing.
    pub fn one_of(&self, key: &'static str, accepted: &[&str]) {
        if let Some(found) = self.optional_text(key)
            && !accepted.contains(&found.as_str())
        {
            self.refuse(key, format!("\"{found}\""), format!("one of {accepted:?}"));
        }
    }

    /// Reads the element type in `torch_dtype` (HF transformers 4) or `dtype` (HF transformers 5).
    pub fn element_type(&self) -> Option<ElementType> {
        let read = |key| {
            let word = self.optional_text(key)?;
            let found = match word.trim_start_matches("torch.") {
                "float32" => Some(ElementType::F32),
                "float16" => Some(ElementType::F16),
                "bfloat16" => Some(ElementType::Bf16),
                _ => None,
            };
            if found.is_none() {
                self.refuse(key, format!("\"{word}\""), "float32, float16 or bfloat16");
            }
            found
        };
        self.agreed(("dtype", read("dtype")), ("torch_dtype", read("torch_dtype")))
    }

    /// Two keys with the same meaning must be equal if both are there.
    pub fn agreed<T: PartialEq + Display>(
        &self,
        new: (&str, Option<T>),
        old: (&str, Option<T>),
    ) -> Option<T> {
        if let (Some(new_value), Some(old_value)) = (&new.1, &old.1)
            && new_value != old_value
        {
            self.refuse(old.0, old_value, format!("{new_value}, which `{}{}` says", self.prefix, new.0));
        }
        new.1.or(old.1)
    }

    /// Reads a nested object. Returns `None` if the key is missing.
    pub fn object(&self, key: &'static str) -> Option<Self> {
        self.nested(key, self.get(key)?)
    }

    /// A nested object, whose name is no constant.
    pub(crate) fn nested(&self, name: &str, value: &Value) -> Option<Self> {
        let Value::Object(map) = value else {
            self.refuse(name, kind(value), "an object");
            return None;
        };
        Some(Self::new(&self.path, &format!("{}{name}.", self.prefix), map.clone()))
    }

    /// Takes over the problems of a nested object, to which its unread keys belong.
    pub fn close(&self, nested: Self) {
        self.close_ignoring(nested, &[]);
    }

    /// Like [`close`](Self::close), without unread keys in `ignored`.
    pub fn close_ignoring(&self, nested: Self, ignored: &[&'static str]) {
        self.problems.borrow_mut().extend(nested.into_problems(ignored));
    }

    /// Takes over a nested object's problems, but not its unread keys, which an invalid key makes
    /// meaningless.
    pub fn give_up(&self, nested: Self) {
        self.problems.borrow_mut().extend(nested.problems.into_inner());
    }

    fn into_problems(self, ignored: &[&'static str]) -> Vec<KeyProblem> {
        let known = self.known.into_inner();
        let mut problems = self.problems.into_inner();
        let named = |key: &str| known.contains(&key) || ignored.contains(&key);
        for key in self.map.keys().filter(|key| !named(key)) {
            let candidates = known.iter().chain(ignored).filter(|k| !self.map.contains_key(**k));
            let nearest = candidates
                .map(|candidate| (strsim::damerau_levenshtein(key, candidate), candidate))
                .min()
                .filter(|(distance, candidate)| *distance <= candidate.len() / 3)
                .map(|(_, candidate)| (*candidate).to_owned());
            problems.push(KeyProblem::Unknown { key: format!("{}{key}", self.prefix), nearest });
        }
        problems
    }

    /// Lists all problems, with unread keys that are in neither `ignored` nor `allowed`.
    pub fn finish(self, ignored: &[&'static str], allowed: &[String]) -> Result<(), ConfigError> {
        let path = self.path.clone();
        let mut problems = self.into_problems(ignored);
        problems
            .retain(|problem| !matches!(problem, KeyProblem::Unknown { key, .. } if allowed.contains(key)));
        end(path, problems)
    }

    /// Lists all problems of a file that also has keys for other programs.
    pub fn finish_reading(self) -> Result<(), ConfigError> {
        end(self.path, self.problems.into_inner())
    }
}

fn end(path: PathBuf, problems: Vec<KeyProblem>) -> Result<(), ConfigError> {
    if problems.is_empty() { Ok(()) } else { Err(ConfigError::Keys { path, problems }) }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
