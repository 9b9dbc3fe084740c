//! `config.json`, key by key: each is read, in a written list of ignored keys, or an error.

mod base;
mod storage;

use std::cell::RefCell;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use errors::{FileError, Listed};
use files::limits;
use ops::ElementType;
use serde_json::{Map, Value};

pub(crate) use base::read_base;
pub(crate) use storage::check_storage;

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The GGUF file cannot be read.
    #[error(transparent)]
    Archive(#[from] irpa::ArchiveError),
    /// The file is no JSON object.
    #[error("`{}` is not a JSON object: {reason}", .path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where it departs from one.
        reason: String,
    },
    /// Keys that are missing, unknown, or have unusable values.
    #[error("`{}`: {} problem(s){}", .path.display(), .problems.len(), Listed(.problems))]
    Keys {
        /// The file.
        path: PathBuf,
        /// All of them.
        problems: Vec<KeyProblem>,
    },
    /// A tower followed by other modules than the network has.
    #[error("`{}`: the modules are {found}, expected {expected}", .path.display())]
    Modules {
        /// The file.
        path: PathBuf,
        /// The modules listed there.
        found: String,
        /// The modules of the network.
        expected: String,
    },
    /// An architecture that is not known.
    #[error("`{}`: architecture `{found}` is not known; known are {known:?}", .path.display())]
    Architecture {
        /// The file.
        path: PathBuf,
        /// The architecture named there.
        found: String,
        /// Those that are known.
        known: Vec<&'static str>,
    },
    /// A text embedding where a language model is expected.
    #[error("`{}`: `{found}` embeds texts and predicts no token", .path.display())]
    Embeds {
        /// The file.
        path: PathBuf,
        /// The architecture named there.
        found: String,
    },
    /// A language model where a text embedding is expected.
    #[error("`{}`: `{found}` predicts tokens and embeds no texts", .path.display())]
    Generates {
        /// The file.
        path: PathBuf,
        /// The architecture named there.
        found: String,
    },
    /// Weights in a storage that is not read.
    #[error(
        "`{}`: the checkpoint is quantized (`{key}`, method `{method}`), which is not read; \
         use the unquantized checkpoint, or save one: `model.dequantize()` and `save_pretrained` in transformers",
        .path.display()
    )]
    Quantized {
        /// The file.
        path: PathBuf,
        /// The key that says so.
        key: String,
        /// The `quant_method`.
        method: String,
    },
}

impl ConfigError {
    /// The same, with keys as the file at hand calls them.
    pub(crate) fn named(mut self, name: impl Fn(&str) -> String) -> Self {
        if let Self::Keys { problems, .. } = &mut self {
            for problem in problems {
                let key = match problem {
                    KeyProblem::Missing { key, .. }
                    | KeyProblem::Value { key, .. }
                    | KeyProblem::Unknown { key, .. } => key,
                };
                *key = name(key);
            }
        }
        self
    }
}

/// Keys of most checkpoints that say nothing about what the network computes.
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

/// What no network has more of, beside [`limits::EXTENT`] of anything.
const AT_MOST: &[(&str, usize)] = &[
    ("num_hidden_layers", limits::LAYERS),
    ("n_layer", limits::LAYERS),
    ("head_dim", limits::HEAD),
    ("max_position_embeddings", limits::POSITIONS),
];

/// Characters of an unusable value that are shown.
const SHOWN: usize = 200;

/// What is wrong with one key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyProblem {
    /// It is not there and has no default.
    #[error("`{key}` is missing, expected {expected}")]
    Missing {
        /// The key.
        key: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// It holds something unusable.
    #[error("`{key}` is {found}, expected {expected}")]
    Value {
        /// The key.
        key: String,
        /// What it holds.
        found: String,
        /// What it may hold.
        expected: String,
    },
    /// Nobody reads it.
    #[error("`{key}` is not a known key{}", nearest_text(.nearest))]
    Unknown {
        /// The key.
        key: String,
        /// The most similar key that is known.
        nearest: Option<String>,
    },
}

fn nearest_text(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or_else(String::new, |key| format!(", the nearest is `{key}`"))
}

/// An object whose keys are read one by one; what is never asked for is an error in the end.
pub struct Keys {
    path: PathBuf,
    /// `rope_scaling.` for a nested object.
    prefix: String,
    map: Map<String, Value>,
    known: RefCell<Vec<&'static str>>,
    problems: RefCell<Vec<KeyProblem>>,
}

impl Keys {
    /// The object in the file at `path`, or in `config.json` if that is a directory.
    ///
    /// # Errors
    /// If it cannot be read or is no object.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let path = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
        let text = files::read_json(&path)?;
        Self::parse(&path, &text)
    }

    /// The keys of a `config.json` with this text; messages name it by `path`.
    ///
    /// # Errors
    /// If it is no JSON object.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let syntax = |reason: String| ConfigError::Syntax { path: path.to_owned(), reason };
        match files::parse_json(text).map_err(|e| syntax(e.to_string()))? {
            Value::Object(map) => Ok(Self::of(path, map)),
            other => Err(syntax(format!("found {}", kind(&other)))),
        }
    }

    /// The keys of an object; messages name it by `path`.
    pub(crate) fn of(path: &Path, map: Map<String, Value>) -> Self {
        Self::new(path, "", map)
    }

    fn new(path: &Path, prefix: &str, map: Map<String, Value>) -> Self {
        let (known, problems) = (RefCell::default(), RefCell::default());
        Self { path: path.into(), prefix: prefix.into(), map, known, problems }
    }

    /// The same object without a key that has been read: for a reader to whom it means something else.
    #[must_use]
    pub fn without(mut self, key: &str) -> Self {
        self.map.remove(key);
        self
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The value of `key`, if there is one that is not null.
    pub fn get(&self, key: &'static str) -> Option<&Value> {
        self.known.borrow_mut().push(key);
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Keys that nobody needs to read.
    pub fn ignore(&self, keys: &[&'static str]) {
        self.known.borrow_mut().extend(keys);
    }

    /// Keeps a problem.
    pub fn refuse(&self, key: &str, found: impl ToString, expected: impl Into<String>) {
        let found = files::as_written(&found.to_string());
        let (key, found) = (self.name(key), errors::shortened(found, SHOWN));
        self.problems.borrow_mut().push(KeyProblem::Value { key, found, expected: expected.into() });
    }

    /// Whether something has been refused.
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

    /// A positive integer that may be missing.
    pub fn optional_count(&self, key: &'static str) -> Option<usize> {
        let own = AT_MOST.iter().find(|(name, _)| *name == key);
        let most = own.map_or(limits::EXTENT, |(_, most)| *most);
        let read = |value: &Value| value.as_u64().filter(|&n| n > 0 && n <= most as u64).map(|n| n as usize);
        self.typed(key, format!("a positive integer, at most {most}"), read)
    }

    /// A positive integer.
    pub fn count(&self, key: &'static str) -> usize {
        self.required(key, "a positive integer", self.optional_count(key)).max(1)
    }

    /// Where the key may be null, which says that there is none: what `read` finds, or `default` if the key is missing.
    fn nullable<T>(&self, key: &'static str, default: Option<T>, read: impl Fn() -> Option<T>) -> Option<T> {
        match self.map.contains_key(key) {
            true => read(),
            false => {
                self.get(key);
                default
            }
        }
    }

    /// A positive integer, or null if there is none; `default` if the key is missing.
    pub fn nullable_count(&self, key: &'static str, default: Option<usize>) -> Option<usize> {
        self.nullable(key, default, || self.optional_count(key))
    }

    /// A positive number, or null if there is none; `default` if the key is missing.
    pub fn nullable_number(&self, key: &'static str, default: Option<f64>) -> Option<f64> {
        self.nullable(key, default, || self.optional_number(key))
    }

    /// `sliding_window_pattern`: each so many layers, one looks through no window.
    pub fn sliding_period(&self) -> Option<usize> {
        let names = ["sliding_window_pattern", "_sliding_window_pattern"];
        let [new, old] = names.map(|name| (name, self.optional_count(name)));
        self.agreed(new, old)
    }

    /// How many positions each of `layers` layers sees, if not all: `window` where `layer_types` says
    /// `sliding_attention`, or `sliding` if there is no such key.
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

    /// `layer_types`: `full_attention` or `sliding_attention` for each of `layers` layers.
    pub fn layer_types(&self, layers: usize) -> Option<Vec<String>> {
        self.layer_types_of(layers, ["full_attention", "sliding_attention"])
    }

    /// `layer_types`: one of two `kinds` for each of `layers` layers.
    pub fn layer_types_of(&self, layers: usize, kinds: [&str; 2]) -> Option<Vec<String>> {
        let expected = format!("a list of {layers} of `{}` and `{}`", kinds[0], kinds[1]);
        let value = self.get("layer_types")?;
        let known = |name: &&str| kinds.contains(name);
        let types = value.as_array().map(Vec::as_slice).unwrap_or_default().iter();
        let types: Vec<String> = types.filter_map(Value::as_str).filter(known).map(str::to_owned).collect();
        if types.len() != layers || value.as_array().map(Vec::len) != Some(layers) {
            self.refuse("layer_types", value, expected);
            return None;
        }
        Some(types)
    }

    /// An integer from 0 on that may be missing.
    pub fn optional_integer(&self, key: &'static str) -> Option<usize> {
        let read = |value: &Value| value.as_u64().filter(|&n| n <= u32::MAX.into()).map(|n| n as usize);
        self.typed(key, "an integer, at least 0", read)
    }

    /// A positive number that may be missing.
    pub fn optional_number(&self, key: &'static str) -> Option<f64> {
        self.typed(key, "a positive number", |value| value.as_f64().filter(|&x| x > 0.0 && x.is_finite()))
    }

    /// A positive number, or what stands for a missing one. That it is null says nothing, and is refused.
    pub fn number_or(&self, key: &'static str, default: f64) -> f64 {
        let number = self.optional_number(key);
        self.refuse_null(key, "a positive number");
        number.unwrap_or(default)
    }

    /// A null is no missing key: transformers does not put the default in its place.
    fn refuse_null(&self, key: &'static str, expected: &str) {
        if self.map.get(key).is_some_and(Value::is_null) {
            self.refuse(key, "null", expected);
        }
    }

    /// A positive number.
    pub fn number(&self, key: &'static str) -> f64 {
        self.required(key, "a positive number", self.optional_number(key))
    }

    /// A truth value, or what stands for a missing one. A null is false in Python; where that is not what a missing key
    /// means, it is refused.
    pub fn flag(&self, key: &'static str, default: bool) -> bool {
        if default {
            self.refuse_null(key, "true or false");
        }
        self.typed(key, "true or false", Value::as_bool).unwrap_or(default)
    }

    /// A switch of which only one position is implemented, in transformers too.
    pub fn always(&self, key: &'static str, position: bool) {
        if self.flag(key, position) != position {
            self.refuse(key, !position, position.to_string());
        }
    }

    /// A text that may be missing.
    pub fn optional_text(&self, key: &'static str) -> Option<String> {
        self.typed(key, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// A text that must be one of `accepted` if it is there.
    pub fn one_of(&self, key: &'static str, accepted: &[&str]) {
        if let Some(found) = self.optional_text(key)
            && !accepted.contains(&found.as_str())
        {
            self.refuse(key, format!("\"{found}\""), format!("one of {accepted:?}"));
        }
    }

    /// The element type under `torch_dtype` (transformers 4) or `dtype` (transformers 5).
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

    /// The value of a key that goes by two names: both may be there if they say the same.
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

    /// A nested object that may be missing.
    pub fn object(&self, key: &'static str) -> Option<Self> {
        match self.get(key)? {
            Value::Object(map) => Some(Self::new(&self.path, &format!("{}{key}.", self.prefix), map.clone())),
            other => {
                self.refuse(key, kind(other), "an object");
                None
            }
        }
    }

    /// Takes over the problems of a nested object, whose unread keys are problems too.
    pub fn close(&self, nested: Self) {
        self.close_ignoring(nested, &[]);
    }

    /// Takes over the problems of a nested object, whose keys that are neither read nor in `ignored` are problems
    /// too.
    pub fn close_ignoring(&self, nested: Self, ignored: &[&'static str]) {
        self.problems.borrow_mut().extend(nested.into_problems(ignored));
    }

    /// Takes over the problems of a nested object of which one key makes the others meaningless.
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

    /// Ends the reading.
    ///
    /// # Errors
    /// All problems: those kept, and each key that is neither read nor in `ignored` nor in `allowed`.
    pub fn finish(self, ignored: &[&'static str], allowed: &[String]) -> Result<(), ConfigError> {
        let path = self.path.clone();
        let mut problems = self.into_problems(ignored);
        problems
            .retain(|problem| !matches!(problem, KeyProblem::Unknown { key, .. } if allowed.contains(key)));
        end(path, problems)
    }

    /// Ends the reading of a file whose other keys are none of the reader's business.
    ///
    /// # Errors
    /// All problems that were kept.
    pub fn finish_reading(self) -> Result<(), ConfigError> {
        end(self.path, self.problems.into_inner())
    }
}

fn end(path: PathBuf, problems: Vec<KeyProblem>) -> Result<(), ConfigError> {
    match problems.is_empty() {
        true => Ok(()),
        false => Err(ConfigError::Keys { path, problems }),
    }
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
