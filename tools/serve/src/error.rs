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
    /// The system cannot start the threads of the server.
    #[error("the server cannot start its threads")]
    Threads(#[source] io::Error),
}
