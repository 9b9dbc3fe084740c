//! Compiles entry points that a program does not need for its first answer while the program already runs.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use generate::{GenerateError, LaterModules, Patience};
use lower::Module;
use runtime::{CompileError, Compiled, Parameters, Runtime, VmModule};

/// A program that ends earlier compiles nothing in vain.
const DELAY: Duration = Duration::from_secs(2);

/// A thread that compiles modules one after another. The compilation stops when this is dropped.
pub(crate) struct Compiling {
    /// Ends the delay.
    hurry: Option<Sender<()>>,
    modules: Receiver<Result<Compiled, CompileError>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Compiling {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.hurry.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic.
            let _ = thread.join();
        }
    }
}

impl Compiling {
    /// The function `compile` must end soon after `stop` is set.
    pub(crate) fn start(
        modules: Vec<Module>,
        stop: Arc<AtomicBool>,
        compile: impl Fn(&Module) -> Result<Compiled, CompileError> + Send + 'static,
    ) -> io::Result<Self> {
        let (tell, compiled) = channel();
        let (hurry, asked) = channel::<()>();
        let compile_all = move || {
            if matches!(asked.recv_timeout(DELAY), Err(RecvTimeoutError::Disconnected)) {
                return;
            }
            for module in modules {
                let compiled = compile(&module);
                let has_failed = compiled.is_err();
                if tell.send(compiled).is_err() || has_failed {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("compile later".into()).spawn(compile_all)?;
        Ok(Self { hurry: Some(hurry), modules: compiled, stop, thread: Some(thread) })
    }

    fn next(&mut self, patience: Patience) -> Option<Result<Compiled, CompileError>> {
        if patience != Patience::Idle
            && let Some(hurry) = self.hurry.take()
        {
            // The thread can have ended.
            let _ = hurry.send(());
        }
        if patience == Patience::Waits { self.modules.recv().ok() } else { self.modules.try_recv().ok() }
    }
}

/// Loads each module with `parameters`: first those that are `ready`, then those that a thread compiles.
pub(crate) fn load_later(
    mut ready: VecDeque<Compiled>,
    mut compiling: Option<Compiling>,
    runtime: Runtime,
    parameters: Parameters,
) -> LaterModules {
    Box::new(move |patience| {
        let next = ready.pop_front().map(Ok);
        let next = next.or_else(|| compiling.as_mut().and_then(|compiling| compiling.next(patience)));
        let Some(compiled) = next.transpose()? else { return Ok(None) };
        let module = VmModule::load(&runtime, &compiled.vmfb, std::slice::from_ref(&parameters));
        Ok::<_, GenerateError>(Some(module?))
    })
}
