//! Handles Ctrl-C and the signals that ask a process to end.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::error::Error;

/// The name of the threads on which Tracewright catches panics and converts the panics to errors.
pub const CAUGHT: &str = "text";

/// The number of the signal that Ctrl-C sends.
const SIGINT: u8 = 2;

const SIGHUP: u8 = 1;

/// The interrupt flag, which Ctrl-C, SIGTERM and SIGHUP set. Long operations check the interrupt flag,
/// and stop if the flag is set.
#[derive(Clone, Default)]
pub struct Interrupt {
    pub asked: Arc<AtomicBool>,
    /// The number of the last signal, or 0.
    signal: Arc<AtomicU8>,
    /// Whether the program is only waiting for the user's next input. While the program waits for
    /// input, the first Ctrl-C ends the process.
    idle: Arc<AtomicBool>,
    /// Whether SIGHUP asks the program to read its options again, and not to end.
    reloads: Arc<AtomicBool>,
    /// Whether SIGHUP has arrived since the program read its options.
    hung_up: Arc<AtomicBool>,
}

impl Interrupt {
    /// Installs the function that handles signals. The first signal asks the running operation to
    /// stop, and the second signal ends the process.
    pub fn listen(&self) {
        let interrupt = self.clone();
        let handler = on_signal(move |signal| {
            if signal == SIGHUP && interrupt.reloads.load(Ordering::SeqCst) {
                interrupt.hung_up.store(true, Ordering::SeqCst);
                return;
            }
            interrupt.signal.store(signal, Ordering::SeqCst);
            if interrupt.asked.swap(true, Ordering::SeqCst) || interrupt.idle.load(Ordering::SeqCst) {
                std::process::exit(code(signal).into());
            }
        });
        if let Err(error) = handler {
            tracing::warn!("signals are not handled: {error}");
        }
    }

    /// Returns the exit code of a process that a signal has stopped: 128 plus the number of the signal,
    /// as shells report it. The result is `None` if no signal has arrived.
    pub fn exit_code(&self) -> Option<u8> {
        self.is_set().then(|| code(self.signal.load(Ordering::SeqCst)))
    }

    /// From now on, SIGHUP asks the program to read its options again.
    pub fn reload_on_hangup(&self) {
        self.reloads.store(true, Ordering::SeqCst);
    }

    /// Whether SIGHUP has arrived since the last call.
    pub fn take_hangup(&self) -> bool {
        self.hung_up.swap(false, Ordering::SeqCst)
    }

    pub fn is_set(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// Clears the interrupt flag after an operation has stopped, so that the program can continue. The
    /// flag stays set after a signal that asks the whole process to end.
    pub fn clear(&self) {
        if self.signal.load(Ordering::SeqCst) == SIGINT {
            self.asked.store(false, Ordering::SeqCst);
        }
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

fn code(signal: u8) -> u8 {
    128 + signal
}

/// Calls `handle` with the number of each signal that asks the process to stop. A signal that the parent
/// process ignores stays ignored if it is SIGHUP, so that `nohup` has its effect.
#[cfg(unix)]
fn on_signal(handle: impl Fn(u8) + Send + 'static) -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;

    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    if !ignores(SIGHUP) {
        signals.add_signal(SIGHUP)?;
    }
    let listen =
        move || signals.forever().for_each(|signal| handle(u8::try_from(signal).unwrap_or_default()));
    thread::Builder::new().name("signals".into()).spawn(listen).map(drop)
}

#[cfg(not(unix))]
fn on_signal(handle: impl Fn(u8) + Send + 'static) -> io::Result<()> {
    ctrlc::set_handler(move || handle(SIGINT)).map_err(io::Error::other)
}

/// Whether the process ignores a signal. Only Linux reports this without an unsafe call (`proc(5)`).
#[cfg(unix)]
fn ignores(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
