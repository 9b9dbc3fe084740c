//! What the command lines `tracewright` and `trace-dump` share: options of networks, paths of models, and how errors are
//! printed.

/// Prints a line on stderr, as `eprintln` does. A closed stderr ends nothing, and no name of a file moves the terminal.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => { $crate::say(&format!($($words)*)) };
}

/// Turns errors that are [`ConsoleError`]s into an error that has a variant `Console`.
#[macro_export]
macro_rules! from_console {
    ($error:ident: $($cause:ty)*) => {
        $(impl From<$cause> for $error {
            fn from(cause: $cause) -> Self {
                Self::Console(cause.into())
            }
        })*
    };
}

mod error;
mod model_path;
mod network;
mod options;
pub mod output;
mod source;

use std::io::{self, Write as _};
use std::path::Path;

pub use error::{CommandError, ConsoleError, exit, parsed, tell, told, usage};
pub use model_path::resolved;
pub use network::{name_of, preset, read_network, warn_of_head};
pub use options::{
    KernelUse, LayoutChoice, ModelArguments, NetworkArguments, Quant, kv_format, quant_or_none,
};
pub use source::read as read_source;
use tracewright::errors::{FileError, WithPath as _, escaped};
use tracewright::files::{limits, read_from, read_stream};

/// Prints a line on stderr; see [`say!`].
pub fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{}", escaped(text));
}

/// The text in a file, or in stdin for `-`.
///
/// # Errors
/// If it can't be read, is not UTF-8, or is longer than a prompt may be.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    match path.as_os_str() == "-" {
        true => read_from(io::stdin().lock(), limits::PROMPT).with_path("read", path),
        false => read_stream(path, limits::PROMPT),
    }
}

/// Prints what a command is for on stdout.
///
/// # Errors
/// [`ConsoleError::Output`].
pub fn print(text: &str) -> Result<(), ConsoleError> {
    io::stdout().lock().write_all(text.as_bytes()).map_err(ConsoleError::Output)
}
