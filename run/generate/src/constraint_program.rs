//! The program that follows schemas and grammars, and its limits.

use std::ffi::OsString;
use std::path::PathBuf;

use files::limits;

/// Runs [`answer_constraints`](crate::answer_constraints) on stdin and stdout, under limits of the system.
#[derive(Clone, Debug)]
pub struct ConstraintProgram {
    /// The path or the name of the program's executable.
    pub program: PathBuf,
    /// The arguments of the program.
    pub arguments: Vec<OsString>,
    /// The names of environment variables that the program does not inherit from this process.
    pub without: Vec<OsString>,
}

/// A limit that a schema or a grammar exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintLimit {
    /// The program needed too much time.
    #[error("the schema or the grammar takes more than {seconds} s, expected less")]
    Time {
        /// The largest time in seconds.
        seconds: u64,
    },
    /// The program ended, which happens if it needs too much memory.
    #[error(
        "the process that follows the schema or the grammar ended, expected one that needs at most {} MiB",
        limits::GRAMMAR_MEMORY >> 20
    )]
    Ended,
}
