//! Child processes that end when they should.

use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How often a running child is looked at.
const POLL: Duration = Duration::from_millis(5);

/// Why a child has no exit status.
pub(crate) enum Stopped {
    /// It could not be started, or not be waited for.
    Io(io::Error),
    /// It ran longer than the limit.
    TimedOut,
    /// The caller asked for the end.
    Interrupted,
}

/// Runs the command and what it starts in turn, until it ends, the limit is over or `interrupt` is set.
pub(crate) fn run(
    command: &mut Command,
    limit: Duration,
    interrupt: Option<&AtomicBool>,
) -> Result<ExitStatus, Stopped> {
    // A group of its own: the compiler starts a linker, and both have to go.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    let mut group = Group(command.spawn().map_err(Stopped::Io)?);
    let start = Instant::now();
    loop {
        if let Some(status) = group.0.try_wait().map_err(Stopped::Io)? {
            return Ok(status);
        }
        if interrupt.is_some_and(|flag| flag.load(Ordering::Relaxed)) {
            return Err(Stopped::Interrupted);
        }
        if start.elapsed() >= limit {
            return Err(Stopped::TimedOut);
        }
        thread::sleep(POLL);
    }
}

/// Ends the child and its children when dropped, by whatever way.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        // A child that was waited for is gone, and its number may be another's by now.
        if matches!(self.0.try_wait(), Ok(Some(_))) {
            return;
        }
        #[cfg(unix)]
        if let Some(group) = i32::try_from(self.0.id()).ok().and_then(rustix::process::Pid::from_raw) {
            // Fails only if the group is gone already.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
