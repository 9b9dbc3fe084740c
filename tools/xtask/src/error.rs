//! Declares the type of errors that a chore returns.

use std::io;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};

use errors::FileError;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{what} is missing ({tried}); install it: {how}")]
    Missing { what: &'static str, tried: String, how: &'static str },
    /// A command of a chore ended with a status other than 0.
    #[error(
        "step `{step}` failed ({status}): the messages of the step are above; fix the problem and run this command again"
    )]
    Failed { step: String, status: ExitStatus },
    /// Some test programs ended with a status other than 0.
    #[error("step `{step}` failed: {}. The messages of these tests are above; fix the problem and run this command again", failed.join(", "))]
    Tests { step: String, failed: Vec<String> },
    /// Cargo built no test programs, although the chore needs test programs.
    #[error("step `{step}` has no test programs; list the test programs in `tools/xtask/src/chores.rs`")]
    NoTests { step: String },
    /// A command that writes its output to a log file ended with an error status.
    #[error("{what} failed ({status}); the last lines of `{log}`:\n{tail}", log = log.display())]
    Quiet { what: String, status: ExitStatus, log: PathBuf, tail: String },
    /// pip reported success, but a pinned package is missing.
    #[error("pip reported success, but `{pin}` is not in `{dir}`: delete that folder and run this command again", dir = dir.display())]
    Incomplete { pin: String, dir: PathBuf },
    #[error("line {line} of `{path}` is `{found}`, expected `NAME==VERSION [--hash=sha256:HEX]`", path = path.display())]
    Pin { path: PathBuf, line: usize, found: String },
    /// The packages of a model contain too few or other parts of its file.
    #[error("the parts of `{}` have {found} bytes, expected {expected}: delete its folder and run this command again", path.display())]
    Parts { path: PathBuf, expected: u64, found: u64 },
    /// maturin reported success, but wrote no wheel.
    #[error("maturin reported success, but no wheel is in `{folder}`", folder = folder.display())]
    NoWheel { folder: PathBuf },
    #[error("the program `{program}` did not start")]
    Start { program: String, source: io::Error },
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the command was interrupted")]
    Interrupted,
}

impl Error {
    /// 130 after an interrupt, otherwise 1; clap uses 2.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Error::Interrupted => ExitCode::from(130),
            _ => ExitCode::FAILURE,
        }
    }
}
