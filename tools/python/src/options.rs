//! Converts keyword arguments of Python calls to options of the library.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use serde_json::Value;
use tracewright::generate::{ConstraintProgram, Sampling, Setting};
use tracewright::model::{TranscribeOptions, WatchOpen};
use tracewright::numeric::NumericOption;
use tracewright::runtime::Compiler;
use tracewright::{Follow, GenerateOptions, OpenOptions};

use crate::error::raised;

const NUMBER: &str = "a number";
const WHOLE: &str = "an integer";
const COUNT: &str = "an integer from 0 on";
const SWITCH: &str = "True or False";
const PATH: &str = "a path";

/// Converts a keyword argument, or returns an error with the argument's name.
fn value<'a, 'py, T: FromPyObject<'a, 'py>>(
    name: &str,
    value: &'a Bound<'py, PyAny>,
    expected: &str,
) -> PyResult<T> {
    value.extract().map_err(|_| {
        let found = value.repr().map_or_else(|_| "unreadable".into(), |shown| shown.to_string());
        PyTypeError::new_err(format!("`{name}` is {found}, expected {expected}"))
    })
}

/// Parses the text of a keyword argument.
fn parsed<T: FromStr<Err: Display>>(name: &str, argument: &Bound<'_, PyAny>) -> PyResult<T> {
    let text: String = value(name, argument, "a string")?;
    text.parse().map_err(|error| PyValueError::new_err(format!("`{name}`: {error}")))
}

fn unknown(name: &str) -> PyErr {
    PyTypeError::new_err(format!("there is no option `{name}`"))
}

/// Returns the keyword arguments of a call. The returned list omits arguments whose value is `None`.
fn given<'py>(arguments: Option<&Bound<'py, PyDict>>) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
    let all = arguments.into_iter().flatten().filter(|(_, argument)| !argument.is_none());
    all.map(|(name, argument)| Ok((name.extract()?, argument))).collect()
}

/// Returns the options for continuing a text, and whether the text may reuse the state of an earlier text.
///
/// `options` contains the options that the model sets for its texts.
pub fn generation(
    mut options: GenerateOptions,
    arguments: Option<&Bound<'_, PyDict>>,
) -> PyResult<(GenerateOptions, bool)> {
    let mut reuse = true;
    for (name, argument) in given(arguments)? {
        let (name, argument) = (name.as_str(), &argument);
        let sampling = &mut options.sampling;
        match name {
            "max_tokens" => {
                options.max_tokens = value(name, argument, COUNT)?;
                options.max_length = None;
            }
            "suppress_tokens" => {
                sampling.rules.suppress_tokens = value(name, argument, "a sequence of token ids")?;
            }
            "seed" => sampling.seed = value(name, argument, COUNT)?,
            "stop" => options.stop = texts(name, argument)?,
            "ignore_eos" => options.ignore_eos = value(name, argument, SWITCH)?,
            "json_schema" => options.follow = Some(Follow::JsonSchema(schema(argument)?)),
            "grammar" => options.follow = Some(Follow::Grammar(value(name, argument, "a string")?)),
            "reuse" => reuse = value(name, argument, SWITCH)?,
            "dry_sequence_breakers" => options.dry_breakers = Some(texts(name, argument)?),
            _ => {
                let is_named = |setting: &&Setting| setting.name == name || setting.aliases.contains(&name);
                let setting = Sampling::settings().find(is_named).ok_or_else(|| unknown(name))?;
                let expected = if setting.range.is_whole { WHOLE } else { NUMBER };
                let number = if setting.range.is_whole {
                    value::<i64>(name, argument, expected)? as f64
                } else {
                    value(name, argument, expected)?
                };
                sampling.set(setting, number).map_err(|error| raised(error.into()))?;
            }
        }
    }
    Ok((options, reuse))
}

/// Returns the options of a transcript.
pub fn transcription(arguments: Option<&Bound<'_, PyDict>>) -> PyResult<TranscribeOptions> {
    let mut options = TranscribeOptions::default();
    for (name, argument) in given(arguments)? {
        let (name, argument) = (name.as_str(), &argument);
        match name {
            "language" => options.language = Some(value(name, argument, "a string")?),
            "translate" => options.translate = value(name, argument, SWITCH)?,
            "timestamps" => {
                let parts: String = value(name, argument, "a string")?;
                if !["none", "segment", "word"].contains(&parts.as_str()) {
                    let found = argument.repr()?;
                    let what = format!("`{name}` is {found}, expected 'none', 'segment' or 'word'");
                    return Err(PyValueError::new_err(what));
                }
                (options.timestamps, options.words) = (parts != "none", parts == "word");
            }
            "prompt" => options.prompt = Some(value(name, argument, "a string")?),
            "condition_on_prev_tokens" => options.condition_on_prev_tokens = value(name, argument, SWITCH)?,
            "temperatures" => options.temperatures = value(name, argument, "a sequence of numbers")?,
            "compression_ratio_threshold" => {
                options.compression_ratio_threshold = Some(value(name, argument, NUMBER)?);
            }
            "logprob_threshold" => options.logprob_threshold = Some(value(name, argument, NUMBER)?),
            "no_speech_threshold" => options.no_speech_threshold = Some(value(name, argument, NUMBER)?),
            "seed" => options.seed = value(name, argument, COUNT)?,
            _ => return Err(unknown(name)),
        }
    }
    Ok(options)
}

/// Converts an argument that is one text or a sequence of texts.
pub fn texts(name: &str, argument: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    match argument.cast::<PyString>() {
        Ok(text) => Ok(vec![text.extract()?]),
        Err(_) => value(name, argument, "a string or a sequence of strings"),
    }
}

/// Converts an argument that is the text of a JSON Schema or a Python object.
fn schema(argument: &Bound<'_, PyAny>) -> PyResult<String> {
    match argument.cast::<PyString>() {
        Ok(text) => text.extract(),
        Err(_) => Ok(tracewright::files::exact_json(&json(argument)?)),
    }
}

/// Converts a Python object to JSON.
pub fn json(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    let text: String = object.py().import("json")?.call_method1("dumps", (object,))?.extract()?;
    tracewright::files::parse_exact(&text).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Returns the options for opening a model. Setting the flag `stopped` stops a running compilation.
pub fn opening(
    py: Python<'_>,
    arguments: Option<&Bound<'_, PyDict>>,
    stopped: &Arc<AtomicBool>,
) -> PyResult<OpenOptions> {
    let mut compiler = None;
    let watched = stopped.clone();
    let watch = WatchOpen::new(move |_| {
        if watched.load(Ordering::Relaxed) {
            std::ops::ControlFlow::Break(())
        } else {
            std::ops::ControlFlow::Continue(())
        }
    });
    let mut options = OpenOptions { hub: console::hub().ok(), watch: Some(watch), ..OpenOptions::default() };
    for (name, argument) in given(arguments)? {
        let (name, argument) = (name.as_str(), &argument);
        match name {
            "context" => options.context = Some(value(name, argument, COUNT)?),
            "chunk" => options.chunk = Some(value(name, argument, COUNT)?),
            "slots" => options.slots = value(name, argument, COUNT)?,
            "device" => options.device = Some(parsed(name, argument)?),
            "threads" => options.threads = value(name, argument, COUNT)?,
            "speculate" => options.speculate = parsed(name, argument)?,
            "verify" => options.verify = value(name, argument, SWITCH)?,
            "lora" => {
                let adapter = |text: String| text.parse().unwrap_or_else(|never| match never {});
                options.lora = texts(name, argument)?.into_iter().map(adapter).collect();
            }
            "allow_config_keys" => options.allow_config_keys = texts(name, argument)?,
            "cache" => options.cache = Some(value(name, argument, PATH)?),
            "iree_compile" => compiler = Some(value::<PathBuf>(name, argument, PATH)?),
            _ => {
                let option = NumericOption::named(name).ok_or_else(|| unknown(name))?;
                let word: String = value(name, argument, "a string")?;
                let invalid = |error| PyValueError::new_err(format!("`{name}`: {error}"));
                option.set(&mut options.numeric, &word).map_err(invalid)?;
            }
        }
    }
    if compiler.is_none() {
        compiler = py.import("tracewright._compiler")?.call_method0("path")?.extract()?;
    }
    // If the compiler's Python package is missing, Tracewright runs `iree-compile` from PATH.
    let mut compiler = Compiler::new(compiler.unwrap_or_else(|| "iree-compile".into()));
    compiler.interrupt = Some(stopped.clone());
    options.compiler = Some(compiler);
    options.constraint_program = constraint_program(py)?;
    Ok(options)
}

/// Returns the program that follows JSON schemas and grammars in separate processes, or `None` if this
/// process is no Python program.
fn constraint_program(py: Python<'_>) -> PyResult<Option<ConstraintProgram>> {
    let again: Vec<Option<OsString>> = py.import("tracewright.__main__")?.getattr("AGAIN")?.extract()?;
    let again: Option<Vec<OsString>> = again.into_iter().collect();
    Ok(match again.as_deref() {
        Some([program, arguments @ ..]) if !program.is_empty() => Some(ConstraintProgram {
            program: program.into(),
            arguments: arguments.iter().cloned().chain(["constrain".into()]).collect(),
            without: Vec::new(),
        }),
        _ => None,
    })
}
