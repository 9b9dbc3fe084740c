//! [`ServeError`] lists the reasons why the server cannot start.

use std::io;
use std::path::PathBuf;

use errors::FileError;

/// The reason why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The server cannot listen on the given host and port.
    #[error("the server cannot listen on `{address}`")]
    Listen {
        /// The host and the port on which the server cannot listen.
        address: String,
        /// The error of the operating system, which reports for example that another program uses the port.
        source: io::Error,
    },
    /// A file that the server needs cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The key file contains no API key.
    #[error("`{}` contains no API key, expected one API key on each line", .path.display())]
    NoKeys {
        /// The path of the key file, which contains no API key.
        path: PathBuf,
    },
    /// An API key contains characters that are invalid in an HTTP header.
    #[error("line {line} of `{}` is not an API key, expected printable ASCII characters without spaces", .path.display())]
    Key {
        /// The path of the key file that contains the invalid API key.
        path: PathBuf,
        /// The number of the line in the key file, counted from 1.
        line: usize,
    },
    /// Two models have the same name.
    #[error("two models have the name `{name}`, expected different names")]
    Name {
        /// The name that two models have.
        name: String,
    },
    /// The file with models is not TOML.
    #[error("line {line} of `{}` is not TOML: {why}", .path.display())]
    ConfigSyntax {
        /// The path of the file with models.
        path: PathBuf,
        /// The number of the line, counted from 1.
        line: usize,
        /// The reason, as the parser reports it.
        why: String,
    },
    /// The file with models contains a key that no model has.
    #[error("line {line} of `{}` has the key `{key}`, expected {expected}", .path.display())]
    ConfigKey {
        /// The path of the file with models.
        path: PathBuf,
        /// The number of the line, counted from 1.
        line: usize,
        /// The unknown key.
        key: String,
        /// The keys that the file can have at this place.
        expected: &'static str,
    },
    /// A key in the file with models has an invalid value.
    #[error("line {line} of `{}` has an invalid value of `{key}`: {why}", .path.display())]
    ConfigValue {
        /// The path of the file with models.
        path: PathBuf,
        /// The number of the line, counted from 1.
        line: usize,
        /// The key of the invalid value.
        key: String,
        /// The reason, as the parser of the flag with the same name reports it.
        why: String,
    },
    /// A model in the file with models has no path.
    #[error("the model in line {line} of `{}` has no `path`, expected a folder, a file or a name on the hub", .path.display())]
    ConfigPath {
        /// The path of the file with models.
        path: PathBuf,
        /// The number of the line in which the model begins, counted from 1.
        line: usize,
    },
    /// The file with models contains no model.
    #[error("`{}` contains no model, expected a table `[[model]]` for each model", .path.display())]
    ConfigEmpty {
        /// The path of the file with models.
        path: PathBuf,
    },
    /// The system cannot start the threads of the server.
    #[error("the server cannot start its threads")]
    Threads(#[source] io::Error),
}
