//! Handles Ctrl-C.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::error::Error;

/// The name of the threads on which Tracewright catches panics and converts the panics to errors.
pub const CAUGHT: &str = "text";

/// The interrupt flag, which Ctrl-C sets. Long operations check the interrupt flag, and stop if the
/// flag is set.
#[derive(Clone, Default)]
pub struct Interrupt {
    pub asked: Arc<AtomicBool>,
    /// Whether the program is only waiting for the user's next input. While the program waits for
    /// input, the first Ctrl-C ends the process.
    idle: Arc<AtomicBool>,
}

impl Interrupt {
    /// Installs the function that handles Ctrl-C. The first Ctrl-C asks the running operation to
    /// stop, and the second Ctrl-C ends the process.
    pub fn listen(&self) {
        let interrupt = self.clone();
        let handler = ctrlc::set_handler(move || {
            if interrupt.asked.swap(true, Ordering::SeqCst) || interrupt.idle.load(Ordering::SeqCst) {
                std::process::exit(130);
            }
        });
        if let Err(error) = handler {
            tracing::warn!("Ctrl-C is not handled: {error}");
        }
    }

    pub fn is_set(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// Clears the interrupt flag after an operation has stopped, so that the program can continue.
    pub fn clear(&self) {
        self.asked.store(false, Ordering::SeqCst);
    }

    /// Sets whether the program is only waiting for the user's next input.
    pub fn wait(&self, idle: bool) {
        self.idle.store(idle, Ordering::SeqCst);
    }

    /// Returns `ControlFlow::Break` if you have pressed Ctrl-C. Callbacks return
    /// `ControlFlow::Break` to stop a long operation.
    pub fn go_on(&self) -> ControlFlow<()> {
        if self.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Runs `work` on a separate thread until the work ends or you press Ctrl-C. Call `or` for
    /// operations that never check the interrupt flag, and to parse untrusted texts. The separate
    /// thread has the large stack that a deeply nested text needs.
    pub fn or<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
        const ROOM: usize = 256 << 20;
        const LOOK: Duration = Duration::from_millis(50);
        let (send, receive) = mpsc::channel();
        let work = move || drop(send.send(work()));
        let worker =
            thread::Builder::new().name(CAUGHT.into()).stack_size(ROOM).spawn(work).map_err(Error::Thread)?;
        loop {
            match receive.recv_timeout(LOOK) {
                Ok(done) => return Ok(done),
                Err(RecvTimeoutError::Timeout) => self.check()?,
                Err(RecvTimeoutError::Disconnected) => match worker.join() {
                    // The panic hook printed nothing, so this thread repeats the panic.
                    Err(panic) => match panic.downcast::<String>() {
                        Ok(words) => panic!("{words}"),
                        Err(panic) => panic!("{}", panic.downcast_ref::<&str>().unwrap_or(&"on a thread")),
                    },
                    Ok(()) => unreachable!("it sends before it ends"),
                },
            }
        }
    }

    /// Returns [`Error::Interrupted`] if you have pressed Ctrl-C.
    pub fn check(&self) -> Result<(), Error> {
        if self.is_set() { Err(Error::Interrupted) } else { Ok(()) }
    }
}
