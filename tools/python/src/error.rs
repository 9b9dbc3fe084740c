//! Converts errors of the library to the exception `TracewrightError` of the Python package.

use error_codes::{AnyCoded, Coded};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use tracewright::ModelError;
use tracewright::errors::WithCauses;

pyo3::create_exception!(
    tracewright,
    TracewrightError,
    PyException,
    "A model cannot be opened, or cannot answer. `code` names the kind of error, and `help` lists remedies."
);

/// Creates a Python exception for an error of the library.
pub fn raised(error: ModelError) -> PyErr {
    let error = AnyCoded::new(error);
    let told = WithCauses(&error).to_string();
    let help: Vec<String> = tracewright_cli::help(&error).iter().map(|help| in_python(help)).collect();
    let shown = help.iter().fold(format!("{}: {told}", error.code()), |all, help| all + "\n  help: " + help);
    Python::attach(|py| {
        let exception = TracewrightError::new_err(shown);
        let value = exception.value(py);
        let set = value
            .setattr("code", error.code().name())
            .and_then(|()| value.setattr("message", told))
            .and_then(|()| value.setattr("help", help));
        set.err().unwrap_or(exception)
    })
}

/// Replaces command-line flags in a help text by Python's keyword arguments: `context=N` replaces
/// the flag `--context N`.
fn in_python(help: &str) -> String {
    let parts = help.split('`').enumerate().map(|(number, part)| match part.strip_prefix("--") {
        // A part with an odd number was between backticks.
        Some(flag) if number % 2 == 1 => {
            let (name, value) = flag.split_once(' ').unwrap_or((flag, "…"));
            format!("{}={value}", name.replace('-', "_"))
        }
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("`")
}
