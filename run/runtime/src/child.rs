//! Runs child processes with a time limit. If this process ends, its child processes also end.

use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Between checks whether a child process has ended.
const POLL: Duration = Duration::from_millis(5);

pub(crate) enum Stopped {
    /// The operating system could not start the child process, or could not report its end.
    Io(io::Error),
    TimedOut,
    Interrupted,
}

/// Kills the process and its children at the time limit, or if `is_interrupted`.
pub(crate) fn run(
    command: &mut Command,
    limit: Duration,
    is_interrupted: impl Fn() -> bool,
) -> Result<ExitStatus, Stopped> {
    let mut group = Group::spawn(command).map_err(Stopped::Io)?;
    let start = Instant::now();
    loop {
        if let Some(status) = group.child.try_wait().map_err(Stopped::Io)? {
            return Ok(status);
        }
        if is_interrupted() {
            return Err(Stopped::Interrupted);
        }
        if start.elapsed() >= limit {
            return Err(Stopped::TimedOut);
        }
        thread::sleep(POLL);
    }
}

/// A child process in its own group. It and its children are killed when this is dropped, or this process
/// ends.
struct Group {
    child: Child,
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

/// Makes a command start in the process group `number`. The number `0` creates a new process group.
#[cfg_attr(not(unix), allow(unused_variables, reason = "only Unix has groups"))]
fn in_group(command: &mut Command, number: u32) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, i32::try_from(number).unwrap_or(0));
}

/// A shell that kills its process group, which the child joins, when this process ends. Otherwise a SIGKILL
/// of this process would leave the child running: Linux can notify a child, but not its children. It reads a
/// pipe that the system closes then. Without a shell, the child can outlive this process.
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
