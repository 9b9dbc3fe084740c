//! Code that the command lines `tracewright` and `trace-dump` share. The crate parses the options
//! of networks, resolves the paths of models, reports the memory of models, and prints errors.

/// Prints a line on stderr, like the macro `eprintln`. The macro ignores a closed stderr, and
/// escapes control characters in file names.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => { $crate::say(&format!($($words)*)) };
}

mod error;
mod footprint;
mod model_path;
mod network;
mod options;
pub mod output;
mod partition;
mod source;

use std::io::{self, Write as _};
use std::path::Path;

pub use error::{CommandError, ConsoleError, exit, help, parsed, tell, told, usage};
pub use footprint::{FootprintReport, patterns};
pub use model_path::{hub, resolved};
pub use network::{name_of, preset, read_network, warn};
pub use options::{KernelUse, LayoutChoice, ModelArguments, NetworkArguments, activation_bits, kv_format};
pub use partition::PartitionReport;
pub use source::read as read_source;
use tracewright::errors::{FileError, WithPath as _, escaped};
use tracewright::files::{limits, read_from, read_stream};

/// Prints a line on stderr; see [`say!`].
pub fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{}", escaped(text));
}

/// Reads the text of a file, or of stdin for `-`.
///
/// # Errors
/// Returns an error if the file cannot be read, is not UTF-8, or is longer than a prompt may be.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    match path.as_os_str() == "-" {
        true => read_from(io::stdin().lock(), limits::PROMPT).with_path("read", path),
        false => read_stream(path, limits::PROMPT),
    }
}

/// Prints the output of a command on stdout, and flushes stdout, so that a reader gets the output before the
/// command continues.
///
/// # Errors
/// Returns [`ConsoleError::Output`] if stdout is closed.
pub fn print(text: &str) -> Result<(), ConsoleError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(ConsoleError::Output)
}
