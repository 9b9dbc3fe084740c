//! [`ServeError`]: why the server does not start.

use std::io;
use std::path::PathBuf;

use errors::FileError;

/// Why the server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("the server cannot listen on `{address}`")]
    Listen {
        /// Host and port as they were given.
        address: String,
        /// The system's answer, such as that another program uses the port.
        source: io::Error,
    },
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file has no key.
    #[error("`{}` has no key, expected one on each line", .path.display())]
    NoKeys {
        /// The file of keys.
        path: PathBuf,
    },
    /// A key cannot be sent in a header.
    #[error("line {line} of `{}` is not a key, expected printable ASCII characters without spaces", .path.display())]
    Key {
        /// The file of keys.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// Two models have the same name.
    #[error("two models have the name `{name}`, expected different names")]
    Name {
        /// The name.
        name: String,
    },
    /// The threads of the server cannot be started.
    #[error("the server's threads do not start")]
    Threads(#[source] io::Error),
}
