//! Ctrl-C.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::error::Error;

/// The name of threads on which panics are caught and become errors.
pub const CAUGHT: &str = "text";

/// Set by Ctrl-C: whatever takes long looks at it.
#[derive(Clone, Default)]
pub struct Interrupt {
    pub asked: Arc<AtomicBool>,
    /// Nothing is being done that could stop by itself.
    idle: Arc<AtomicBool>,
}

impl Interrupt {
    /// The first Ctrl-C asks to stop; the second ends the process at once.
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

    /// What was asked to stop has stopped, and something else goes on.
    #[cfg(feature = "iree")]
    pub fn clear(&self) {
        self.asked.store(false, Ordering::SeqCst);
    }

    /// Says whether somebody is waited for.
    #[cfg(feature = "iree")]
    pub fn wait(&self, idle: bool) {
        self.idle.store(idle, Ordering::SeqCst);
    }

    /// For whoever asks whether to go on.
    pub fn go_on(&self) -> ControlFlow<()> {
        if self.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// What `work` gives, unless Ctrl-C comes first: for what cannot be asked to stop, and what text that somebody else
    /// wrote may lead deep. It has a thread of its own, with room.
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
                    // One that nobody caught, and of which nothing was said.
                    Err(panic) => match panic.downcast::<String>() {
                        Ok(words) => panic!("{words}"),
                        Err(panic) => panic!("{}", panic.downcast_ref::<&str>().unwrap_or(&"on a thread")),
                    },
                    Ok(()) => unreachable!("it sends before it ends"),
                },
            }
        }
    }

    /// For what stops by an error.
    pub fn check(&self) -> Result<(), Error> {
        if self.is_set() { Err(Error::Interrupted) } else { Ok(()) }
    }
}
