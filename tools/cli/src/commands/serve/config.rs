//! The file of `tracewright serve --config`: a table `[[model]]` for each model, with flags as keys.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args as _, Command, FromArgMatches as _};
use serve::ServeError;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use tracewright::errors::{escaped, shortened};
use tracewright::files::read_stream;
use tracewright::generate::Setting;

use super::{Arguments, NamedModel};
use crate::arguments::RunArguments;
use crate::options::sampler_flags::setting_of;

/// The most bytes of the file.
const MOST: u64 = 1 << 20;

/// Keys of a model that are no flags.
const OWN: [&str; 3] = ["path", "name", "aliases"];

/// Flags of a model that are no [`RunArguments`].
const FLAGS: [&str; 7] =
    ["slots", "keep-alive", "isolate-templates", "speculate", "lora-adapter", "max-loras", "max-lora-rank"];

/// The keys of a model, for error messages.
const KEYS: &str = "`path`, `name`, `aliases`, a flag of a model without `--`, or an option of the sampler";

/// Flags of a model's answers that are no [`Setting`]. A loaded model takes new values of these and of the settings.
const ANSWER_FLAGS: [&str; 4] =
    ["samplers", "dry-sequence-breaker", "suppress-tokens", "ignore-generation-config"];

/// A model with all its options.
#[derive(Clone)]
pub struct ConfiguredModel {
    pub named: NamedModel,
    pub aliases: Vec<String>,
    /// The model's table without the options of answers, which a reload compares.
    pub settings: String,
    pub arguments: Arguments,
}

/// A file with models, for error messages.
struct ConfigFile<'a> {
    path: &'a Path,
    text: &'a str,
}

/// Reads the models of a file. Flags of the command line are the defaults of all models.
pub fn read(path: &Path, base: &Arguments) -> Result<Vec<ConfiguredModel>, ServeError> {
    let text = read_stream(path, MOST)?;
    let file = ConfigFile { path, text: &text };
    let syntax = |error: toml::de::Error| ServeError::ConfigSyntax {
        path: path.to_owned(),
        line: file.line(error.span().unwrap_or_default()),
        why: error.message().to_owned(),
    };
    let table = DeTable::parse(&text).map_err(syntax)?;
    let mut models = Vec::new();
    for (key, value) in table.get_ref() {
        let DeValue::Array(list) = value.get_ref() else {
            return Err(file.unknown(key, "`[[model]]`"));
        };
        if key.get_ref() != "model" {
            return Err(file.unknown(key, "`[[model]]`"));
        }
        for one in list.iter() {
            let DeValue::Table(table) = one.get_ref() else {
                return Err(file.unknown(key, "`[[model]]`"));
            };
            models.push(file.model(table, one.span(), base)?);
        }
    }
    if models.is_empty() { Err(ServeError::ConfigEmpty { path: path.to_owned() }) } else { Ok(models) }
}

impl ConfigFile<'_> {
    fn line(&self, at: Range<usize>) -> usize {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        before.bytes().filter(|byte| *byte == b'\n').count() + 1
    }

    fn unknown(&self, key: &Spanned<Cow<'_, str>>, expected: &'static str) -> ServeError {
        let (path, line) = (self.path.to_owned(), self.line(key.span()));
        ServeError::ConfigKey { path, line, key: escaped(key.get_ref()), expected }
    }

    fn invalid(&self, key: &Spanned<Cow<'_, str>>, why: impl Into<String>) -> ServeError {
        let (path, line) = (self.path.to_owned(), self.line(key.span()));
        ServeError::ConfigValue { path, line, key: key.get_ref().to_string(), why: why.into() }
    }

    fn model(
        &self,
        table: &DeTable<'_>,
        at: Range<usize>,
        base: &Arguments,
    ) -> Result<ConfiguredModel, ServeError> {
        let known = flags();
        let (mut model, mut name, mut aliases) = (None, None, Vec::new());
        let mut numbers: Vec<(&'static Setting, &str)> = Vec::new();
        let mut arguments = base.clone();
        for (key, value) in table {
            let word = key.get_ref().as_ref();
            match word {
                "path" => model = Some(self.text_of(key, value)?),
                "name" => name = Some(self.text_of(key, value)?),
                "aliases" => aliases = self.texts(key, value)?,
                "ignore-generation-config" if matches!(value.get_ref(), DeValue::Boolean(false)) => {
                    arguments.sampling.ignore_generation_config = false;
                }
                flag if known.contains(flag) || ANSWER_FLAGS.contains(&flag) => {
                    let words = self.words(key, value)?;
                    update(&mut arguments, words).map_err(|why| self.invalid(key, why))?;
                }
                _ => {
                    let setting = setting_of(word).ok_or_else(|| self.unknown(key, KEYS))?;
                    if let Some((_, other)) = numbers.iter().find(|(given, _)| given.name == setting.name) {
                        return Err(self.invalid(key, format!("`{other}` sets the same option")));
                    }
                    numbers.push((setting, word));
                    arguments.sampling.sampler.set(setting, self.number(key, value, setting)?);
                }
            }
        }
        let path = model.ok_or(ServeError::ConfigPath { path: self.path.to_owned(), line: self.line(at) })?;
        let named = NamedModel { name, path: path.into() };
        arguments.models = vec![named.clone()];
        let of_answers = |word: &str| ANSWER_FLAGS.contains(&word) || setting_of(word).is_some();
        let setting = |(key, value): (&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
            let values = match value.get_ref() {
                DeValue::Array(list) => list.iter().map(|one| plain(one.get_ref())).collect(),
                one => vec![plain(one)],
            };
            format!("{}={values:?}\n", key.get_ref())
        };
        let settings = table.iter().filter(|(key, _)| !of_answers(key.get_ref())).map(setting).collect();
        Ok(ConfiguredModel { named, aliases, settings, arguments })
    }

    fn text_of(
        &self,
        key: &Spanned<Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<String, ServeError> {
        match value.get_ref() {
            DeValue::String(text) if !text.is_empty() => Ok(text.to_string()),
            _ => Err(self.invalid(key, "expected a text")),
        }
    }

    fn texts(
        &self,
        key: &Spanned<Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Vec<String>, ServeError> {
        match value.get_ref() {
            DeValue::Array(list) => list.iter().map(|one| self.text_of(key, one)).collect(),
            _ => Err(self.invalid(key, "expected a list of texts")),
        }
    }

    /// Returns the number of a sampler's setting.
    fn number(
        &self,
        key: &Spanned<Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
        setting: &'static Setting,
    ) -> Result<f64, ServeError> {
        let number = match value.get_ref() {
            DeValue::Integer(number) => {
                i64::from_str_radix(number.as_str(), number.radix()).ok().map(|n| n as f64)
            }
            DeValue::Float(number) => number.as_str().parse().ok(),
            _ => None,
        };
        let found = self.text.get(value.span()).unwrap_or_default();
        let why = || format!("`{}`, expected {}", shortened(escaped(found), 40), setting.range.expected);
        number.filter(|number| setting.range.contains(*number)).ok_or_else(|| self.invalid(key, why()))
    }

    /// Returns the words of the command line that set the same.
    fn words(
        &self,
        key: &Spanned<Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Vec<String>, ServeError> {
        let flag = key.get_ref();
        let values = match value.get_ref() {
            DeValue::Boolean(_) if ANSWER_FLAGS.contains(&&**flag) && flag != "ignore-generation-config" => {
                return Err(self.invalid(key, "expected a value, not true or false"));
            }
            DeValue::Boolean(is_set) => {
                return Ok(is_set.then(|| format!("--{flag}")).into_iter().collect());
            }
            DeValue::Array(list) if list.is_empty() => {
                return Err(self.invalid(key, "an empty list, expected at least one value"));
            }
            DeValue::Array(list) => list.iter().map(Spanned::get_ref).collect(),
            one => vec![one],
        };
        let word = |value: &DeValue<'_>| match plain(value) {
            Some(text) => Ok(format!("--{flag}={text}")),
            None => Err(self.invalid(key, "expected a text, a number, true, false, or a list of texts")),
        };
        values.into_iter().map(word).collect()
    }
}

/// The text of a value that one word of the command line can contain.
fn plain(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        DeValue::Boolean(is_set) => Some(is_set.to_string()),
        DeValue::Array(_) | DeValue::Datetime(_) | DeValue::Table(_) => None,
    }
}

/// The names of the flags that a model can set.
fn flags() -> BTreeSet<String> {
    let command = RunArguments::augment_args(Command::new("serve"));
    let of_run = command.get_arguments().flat_map(|argument| argument.get_long_and_visible_aliases());
    let names = of_run.flatten().map(str::to_owned);
    names.chain(FLAGS.map(str::to_owned)).filter(|name| !OWN.contains(&name.as_str())).collect()
}

/// Sets the options of some words of a command line, and keeps all others.
fn update(arguments: &mut Arguments, words: Vec<String>) -> Result<(), String> {
    let reason = |error: clap::Error| {
        let text = error.to_string();
        // The second line can list the valid values.
        let lines = text.lines().take(2).map(|line| line.trim_start_matches("error: ").trim());
        lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
    };
    let command = Arguments::augment_args_for_update(Command::new("serve").no_binary_name(true));
    // The command line needs a model, which the caller replaces.
    let words = words.into_iter().chain(["model".to_owned()]);
    let mut matches: ArgMatches = command.try_get_matches_from(words).map_err(reason)?;
    let ids: Vec<String> = matches.ids().map(|id| id.as_str().to_owned()).collect();
    for id in ids {
        if matches.value_source(&id) != Some(ValueSource::CommandLine) {
            matches.try_clear_id(&id).map_err(|error| error.to_string())?;
        }
    }
    arguments.update_from_arg_matches_mut(&mut matches).map_err(reason)
}
