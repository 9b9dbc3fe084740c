//! The Python class `Generation`, which yields a text piece by piece.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tracewright::ModelError;
use tracewright::generate::Finish;
use tracewright::model::{Completion, Pieces, Request};

use crate::error::raised;
use crate::wait::{self, MOMENT};

/// Yields the pieces of a text while the model generates the text. Dropping the iterator stops the
/// generation.
#[pyclass(frozen, module = "tracewright", name = "Generation")]
pub struct PyGeneration {
    /// The number of tokens in the prompt.
    #[pyo3(get)]
    prompt_tokens: usize,
    /// The iterator over the pieces of text. The value is `None` after a signal handler raised an
    /// exception and so ended the generation.
    pieces: Mutex<Option<Pieces>>,
}

impl PyGeneration {
    pub fn begin(py: Python<'_>, request: Request) -> PyResult<Self> {
        let prompt_tokens = request.prompt().tokens().len();
        let pieces = py.detach(|| request.stream()).map_err(raised)?;
        Ok(Self { prompt_tokens, pieces: Mutex::new(Some(pieces)) })
    }

    fn pieces(&self) -> MutexGuard<'_, Option<Pieces>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let next: PyResult<Option<Result<String, ModelError>>> = wait::until(py, || {
            self.pieces().as_mut().map_or(Poll::Ready(None), |pieces| pieces.next_within(MOMENT))
        });
        match next {
            Ok(piece) => piece.transpose().map_err(raised),
            Err(exception) => {
                py.detach(|| drop(self.pieces().take()));
                Err(exception)
            }
        }
    }

    /// Calls `fact` with the completed generation, or returns `None` if the generation has not ended.
    fn known<T: Send>(&self, py: Python<'_>, fact: impl FnOnce(&Completion) -> T + Send) -> Option<T> {
        py.detach(|| self.pieces().as_ref().and_then(Pieces::completion).map(fact))
    }
}

#[pymethods]
impl PyGeneration {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.next(py)
    }

    /// Waits for the end of the text, and returns the whole text.
    fn text(&self, py: Python<'_>) -> PyResult<String> {
        while self.next(py)?.is_some() {}
        let ended = || PyRuntimeError::new_err("the generation was interrupted, and its text is gone");
        self.known(py, |completion| completion.text.clone()).ok_or_else(ended)
    }

    /// Ends the generation after the next token. The iterator still yields the text up to the last token.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.pieces().iter().for_each(Pieces::cancel));
    }

    /// The generated token ids, or `None` before the text has ended.
    #[getter]
    fn tokens(&self, py: Python<'_>) -> Option<Vec<u32>> {
        self.known(py, |completion| completion.generated.tokens.clone())
    }

    /// The reason why the text ended: `stop`, `length`, `context` or `cancelled`. The reason is
    /// `None` before the text has ended.
    #[getter]
    fn finish(&self, py: Python<'_>) -> Option<&'static str> {
        self.known(py, |completion| match completion.generated.finish {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::Context => "context",
            Finish::Cancelled => "cancelled",
        })
    }

    /// The number of new tokens per second, or `None` before the text has ended.
    #[getter]
    fn tokens_per_second(&self, py: Python<'_>) -> Option<f64> {
        self.known(py, |completion| completion.generated.decode_rate())
    }
}
