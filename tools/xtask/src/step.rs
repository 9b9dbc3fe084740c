//! Runs the commands of a chore. Each command is one step of the chore. A step has a name and runs
//! as a child process. The module reports the time of each step.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::error::Error;

pub struct Step<'a> {
    name: &'a str,
    begun: Instant,
}

impl<'a> Step<'a> {
    /// Prints the command of the step on stderr. Call this function before you run the command.
    pub fn begin(name: &'a str, command: &Command) -> Self {
        eprintln!("==> {name}: {}", line(command));
        Self { name, begun: Instant::now() }
    }

    pub fn end(self, status: ExitStatus) -> Result<(), Error> {
        check(status)?;
        if !status.success() {
            return Err(Error::Failed { step: self.name.to_owned(), status });
        }
        eprintln!("<== {}: {}", self.name, human(self.begun.elapsed()));
        Ok(())
    }
}

/// Runs `command` in the foreground, and prints the command and its time on stderr.
pub fn step(name: &str, command: &mut Command) -> Result<(), Error> {
    let step = Step::begin(name, command);
    step.end(command.status().map_err(|source| start_error(command, source))?)
}

/// [`Error::Interrupted`] if a child was interrupted.
pub fn check(status: ExitStatus) -> Result<(), Error> {
    const SIGINT: i32 = 2;
    let interrupted = status.signal() == Some(SIGINT) || status.code() == Some(130);
    if interrupted { Err(Error::Interrupted) } else { Ok(()) }
}

pub fn starts(program: impl AsRef<OsStr>) -> io::Result<()> {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().map(drop)
}

pub fn start_error(command: &Command, source: io::Error) -> Error {
    Error::Start { program: command.get_program().to_string_lossy().into_owned(), source }
}

/// Formats a duration for messages, such as `8.3 s` or `4 min 07 s`.
pub fn human(time: Duration) -> String {
    match time.as_secs() {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        seconds => format!("{} min {:02} s", seconds / 60, seconds % 60),
    }
}

/// Formats a command as a user would type it, for example with `cargo` instead of the path of cargo.
fn line(command: &Command) -> String {
    let program = command.get_program();
    let program = std::path::Path::new(program).file_name().unwrap_or(program);
    let words = std::iter::once(program).chain(command.get_args()).map(|word| {
        let word = word.to_string_lossy();
        if word.contains(' ') { format!("'{word}'") } else { word.into_owned() }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_step_says_so() {
        let error = step("lint", Command::new("sh").args(["-c", "exit 3"])).unwrap_err().to_string();
        assert_eq!(
            error,
            "step `lint` failed (exit status: 3): the messages of the step are above; fix the problem and run this command again"
        );
        assert!(matches!(step("x", &mut Command::new("no-such-program")), Err(Error::Start { .. })));
    }

    #[test]
    fn an_interrupted_child_interrupts_us() {
        let ended = step("demo", Command::new("sh").args(["-c", "exit 130"]));
        assert!(matches!(ended, Err(Error::Interrupted)));
        // Not sent for real: where this test runs in the background, its children ignore the signal.
        assert!(matches!(check(ExitStatus::from_raw(2)), Err(Error::Interrupted)));
    }

    #[test]
    fn times_read_well() {
        assert_eq!(human(Duration::from_millis(8340)), "8.3 s");
        assert_eq!(human(Duration::from_secs(247)), "4 min 07 s");
    }
}
