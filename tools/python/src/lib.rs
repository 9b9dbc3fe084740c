//! The module `tracewright._native` of the Python package, which contains the class `Model` and the
//! command lines.

mod error;
mod generation;
mod model;
mod options;
mod wait;

use std::ffi::OsString;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::error::TracewrightError;
    #[pymodule_export]
    use super::generation::PyGeneration;
    #[pymodule_export]
    use super::model::PyModel;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    /// Runs the command line `tracewright`, and returns the exit code. `again` contains the words
    /// of the command that runs Tracewright's command line in another process.
    #[pyfunction]
    fn run(py: Python<'_>, words: Vec<OsString>, again: Vec<OsString>) -> u8 {
        py.detach(|| tracewright_cli::run(tracewright::models::read, words, again))
    }

    /// Runs the command line `trace-dump`, and returns the exit code.
    #[pyfunction]
    fn trace_dump(py: Python<'_>, words: Vec<OsString>) -> u8 {
        py.detach(|| inspect::run(tracewright::models::read, words))
    }
}
