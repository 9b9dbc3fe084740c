//! Waits for the model without holding the lock of the Python interpreter. While Tracewright waits,
//! other Python threads can run, and Ctrl-C interrupts the wait.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use tracewright::ModelError;

use crate::error::raised;

/// The time between two checks for signals such as Ctrl-C.
pub const MOMENT: Duration = Duration::from_millis(50);

/// Calls `wait` until `wait` returns a result, or until a signal handler raises an exception such
/// as `KeyboardInterrupt`. Each call of `wait` lasts at most the time [`MOMENT`].
pub fn until<T: Send>(py: Python<'_>, mut wait: impl FnMut() -> Poll<T> + Send) -> PyResult<T> {
    loop {
        match py.detach(&mut wait) {
            Poll::Ready(done) => return Ok(done),
            Poll::Pending => py.check_signals()?,
        }
    }
}

/// Runs `work` on a separate thread, and returns the result. If a signal handler raises an
/// exception, `work` continues on its thread, and the function drops the result of `work`.
pub fn result<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, ModelError> + Send + 'static,
) -> PyResult<T> {
    let (send, receive) = channel();
    let work = move || drop(send.send(work()));
    thread::Builder::new()
        .name("call".into())
        .spawn(work)
        .map_err(|error| raised(ModelError::Thread(error)))?;
    let done = until(py, move || match receive.recv_timeout(MOMENT) {
        Ok(done) => Poll::Ready(done),
        Err(RecvTimeoutError::Timeout) => Poll::Pending,
        // The thread of `work` panicked.
        Err(RecvTimeoutError::Disconnected) => Poll::Ready(Err(ModelError::Gone)),
    })?;
    done.map_err(raised)
}
