//! Runs child processes with a time limit. If this process ends, its child processes also end.

use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which this process checks whether a child process has ended.
const POLL: Duration = Duration::from_millis(5);

pub(crate) enum Stopped {
    /// The operating system could not start the child process, or could not report its end.
    Io(io::Error),
    /// The child process ran longer than the time limit.
    TimedOut,
    /// The caller stopped the child process.
    Interrupted,
}

/// Runs a command. If the time limit is exceeded or `is_interrupted` returns `true`, the function
/// kills the command's process and all child processes of this process.
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

/// A child process in a separate process group. When this value is dropped or this process ends for
/// any reason, the child process and its own child processes are killed.
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

/// A shell that waits for the end of this process, and then kills its own process group. The child
/// process starts in the process group of the shell, so killing the process group also kills the
/// child process. Without the shell, a SIGKILL of this process would leave the child running. Linux
/// can notify a child when its parent ends, but cannot notify the child's own child processes.
///
/// The shell reads from a pipe, which the operating system closes when this process ends. On
/// systems without a shell, the child process can outlive this process.
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
