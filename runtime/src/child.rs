//! Child processes that end when they should.

use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
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
    let mut group = Group::spawn(command).map_err(Stopped::Io)?;
    let start = Instant::now();
    loop {
        if let Some(status) = group.child.try_wait().map_err(Stopped::Io)? {
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

/// Ends the child and its children when dropped, and when this process dies, by whatever way.
struct Group {
    child: Child,
    /// The number of the group.
    #[cfg_attr(not(unix), allow(dead_code, reason = "only Unix has groups"))]
    number: u32,
    _watchman: Option<Watchman>,
}

impl Group {
    fn spawn(command: &mut Command) -> io::Result<Self> {
        let watchman = Watchman::new();
        // A group apart from ours: the compiler starts a linker, and both have to go.
        let watched = watchman.as_ref().map(|watchman| watchman.0.id());
        in_group(command, watched.unwrap_or(0));
        let child = command.spawn()?;
        Ok(Self { number: watched.unwrap_or(child.id()), child, _watchman: watchman })
    }
}

/// Starts the command in a group, or in one of its own if that is 0.
#[cfg_attr(not(unix), allow(unused_variables, reason = "only Unix has groups"))]
fn in_group(command: &mut Command, number: u32) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, i32::try_from(number).unwrap_or(0));
}

/// A shell that waits for this process to end, and then ends its own group, to which the child belongs from the beginning:
/// there is no moment at which the child is there and unwatched. Nothing else is left to do so after a SIGKILL: a child is
/// not told when its parent dies, and what Linux has for that does not reach the child's own children.
///
/// It waits for the end of its input, whose other end the system closes with this process. Where there is no shell,
/// nobody watches.
struct Watchman(Child);

impl Watchman {
    fn new() -> Option<Self> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read -r _; kill -s KILL 0"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // Ctrl-C in a terminal is for us: we end what we started.
        in_group(&mut command, 0);
        if cfg!(unix) { command.spawn().ok().map(Self) } else { None }
    }
}

impl Drop for Watchman {
    fn drop(&mut self) {
        // Before its input ends.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A child that was waited for is gone, and its number may be another's by now.
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        #[cfg(unix)]
        if let Some(group) = i32::try_from(self.number).ok().and_then(rustix::process::Pid::from_raw) {
            // Fails only if the group is gone already.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
