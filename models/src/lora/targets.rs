//! Which modules the keys of `adapter_config.json` select (`check_target_module_exists` in PEFT).

use fancy_regex::Regex;
use serde_json::{Map, Value};

use super::error::LoraProblem;

/// A list of names, or a regular expression in Python's syntax.
#[derive(Debug)]
pub(super) enum Names {
    /// A whole name, or its end after a dot.
    List(Vec<String>),
    Pattern(Box<Regex>),
    AllLinear,
}

impl Names {
    /// `None` for a missing key.
    pub(super) fn read(key: &str, value: Option<&Value>) -> Result<Option<Self>, LoraProblem> {
        const EXPECTED: &str = "a list of names, or a regular expression";
        const HELP: &str = "save the adapter again with PEFT";
        let problem = |found: &Value| LoraProblem::Field {
            key: key.to_owned(),
            found: found.to_string(),
            expected: EXPECTED,
            help: HELP,
        };
        match value {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if text == "all-linear" => Ok(Some(Self::AllLinear)),
            Some(found @ Value::String(text)) => {
                let pattern = full(text).ok_or_else(|| problem(found))?;
                Ok(Some(Self::Pattern(Box::new(pattern))))
            }
            Some(found) => Ok(Some(Self::List(texts(found).ok_or_else(|| problem(found))?))),
        }
    }

    pub(super) fn matches(&self, module: &str) -> bool {
        match self {
            Self::List(names) => names.iter().any(|name| {
                module.strip_suffix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }),
            Self::Pattern(pattern) => pattern.is_match(module).unwrap_or(false),
            Self::AllLinear => true,
        }
    }

    /// Whether `modules_to_save` selects the module or one around it, by the end of its name even within a word.
    pub(super) fn save(&self, module: &str) -> bool {
        let Self::List(names) = self else { return false };
        let ends = module.match_indices('.').map(|(end, _)| end).chain([module.len()]);
        ends.into_iter().any(|end| names.iter().any(|name| module[..end].ends_with(name.as_str())))
    }
}

/// Whether a layer's number is among those of `layers_to_transform`, at the place that `layers_pattern` names.
#[derive(Debug)]
pub(super) struct Layers {
    numbers: Vec<u64>,
    patterns: Vec<Regex>,
}

impl Layers {
    /// `None` if all layers have the adapter.
    pub(super) fn read(config: &Map<String, Value>) -> Result<Option<Self>, LoraProblem> {
        let problem = |key: &str, found: &Value, expected| LoraProblem::Field {
            key: key.to_owned(),
            found: found.to_string(),
            expected,
            help: "save the adapter again with PEFT",
        };
        let numbers = match config.get("layers_to_transform") {
            None | Some(Value::Null) => return Ok(None),
            Some(found) => {
                let one = found.as_u64().map(|one| vec![one]);
                let list = || found.as_array()?.iter().map(Value::as_u64).collect();
                one.or_else(list).ok_or_else(|| {
                    problem("layers_to_transform", found, "a layer's number, or a list of numbers")
                })?
            }
        };
        if numbers.is_empty() {
            return Ok(None);
        }
        let patterns = match config.get("layers_pattern") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::String(one)) if one.is_empty() => Vec::new(),
            Some(Value::String(one)) => vec![one.clone()],
            Some(found) => {
                texts(found).ok_or_else(|| problem("layers_pattern", found, "a name, or a list of names"))?
            }
        };
        let patterns = if patterns.is_empty() { vec!["[^.]*".to_owned()] } else { patterns };
        // An absent module before the pattern is possible only if the configuration names one.
        let regex = |pattern: &String| {
            let found = Value::String(pattern.clone());
            let regex = Regex::new(&format!(r"\A(?:.*?\.)?(?:{pattern})\.(\d+)\."));
            regex.map_err(|_| problem("layers_pattern", &found, "a regular expression"))
        };
        Ok(Some(Self { numbers, patterns: patterns.iter().map(regex).collect::<Result<_, _>>()? }))
    }

    pub(super) fn contain(&self, module: &str) -> bool {
        let number = self.patterns.iter().find_map(|pattern| {
            let found = pattern.captures(module).ok().flatten()?;
            found.get(1)?.as_str().parse::<u64>().ok()
        });
        number.is_some_and(|number| self.numbers.contains(&number))
    }
}

/// `rank_pattern` or `alpha_pattern`: the first one whose name or expression is the end of a module's name applies.
#[derive(Debug, Default)]
pub(super) struct Patterns(Vec<(Regex, f64)>);

impl Patterns {
    pub(super) fn read(key: &str, value: Option<&Value>) -> Result<Self, LoraProblem> {
        let problem = |found: &Value| LoraProblem::Field {
            key: key.to_owned(),
            found: found.to_string(),
            expected: "an object with a positive number for each name",
            help: "save the adapter again with PEFT",
        };
        match value {
            None | Some(Value::Null) => Ok(Self::default()),
            Some(found @ Value::Object(patterns)) => {
                let one = |(pattern, number): (&String, &Value)| {
                    let regex = Regex::new(&format!(r"\A(?:(?:.*\.)?(?:{pattern}))\z")).ok()?;
                    Some((regex, number.as_f64().filter(|number| *number > 0.0)?))
                };
                patterns.iter().map(one).collect::<Option<_>>().map(Self).ok_or_else(|| problem(found))
            }
            Some(found) => Err(problem(found)),
        }
    }

    pub(super) fn of(&self, module: &str) -> Option<f64> {
        self.0
            .iter()
            .find(|(pattern, _)| pattern.is_match(module).unwrap_or(false))
            .map(|(_, number)| *number)
    }
}

/// A regular expression that matches a whole name.
fn full(pattern: &str) -> Option<Regex> {
    Regex::new(&format!(r"\A(?:{pattern})\z")).ok()
}

fn texts(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
}
