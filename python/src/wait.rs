//! Waiting without the interpreter's lock, so that other threads of Python run and Ctrl-C is heard.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use tracewright::ModelError;

use crate::error::raised;

/// How long a wait lasts before Python may handle a signal.
pub const MOMENT: Duration = Duration::from_millis(50);

/// Repeats a wait of a [`MOMENT`] until it has a result or a signal handler raises an exception, such as `KeyboardInterrupt`.
pub fn until<T: Send>(py: Python<'_>, mut wait: impl FnMut() -> Poll<T> + Send) -> PyResult<T> {
    loop {
        match py.detach(&mut wait) {
            Poll::Ready(done) => return Ok(done),
            Poll::Pending => py.check_signals()?,
        }
    }
}

/// The result of `work`, which runs on a thread of its own. After an exception of a signal handler the work goes on, and its
/// result is dropped.
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
        // The thread panicked.
        Err(RecvTimeoutError::Disconnected) => Poll::Ready(Err(ModelError::Gone)),
    })?;
    done.map_err(raised)
}
