//! Code that the command lines `tracewright` and `trace-dump` share. The crate parses the options
//! of networks, resolves the paths of models, reports the memory of models, and prints errors.

/// Like `eprintln`, but ignores a closed stderr, and escapes control characters in file names.
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
mod variables;

use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

pub use error::{CommandError, ConsoleError, exit, help, tell, usage};
pub use footprint::{FootprintReport, patterns};
pub use model_path::{hub, resolved};
pub use network::{name_of, preset, read_network, warn};
pub use options::{
    KernelUse, ModelArguments, NetworkArguments, NumericArguments, NumericsArguments, TextArguments,
};
pub use partition::PartitionReport;
pub use source::read as read_source;
use tracewright::errors::{WithPath as _, escaped};
use tracewright::files::{limits, read_from, read_stream};
pub use tracewright::numeric::{activation_bits, kv_format};
pub use variables::parsed;

pub fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{}", escaped(text));
}

/// Or stdin for `-`.
pub fn read_text(path: &Path) -> Result<String, ConsoleError> {
    read_text_within(path, limits::PROMPT)
}

/// At most `limit` bytes.
pub fn read_text_within(path: &Path, limit: u64) -> Result<String, ConsoleError> {
    if path.as_os_str() == "-" {
        take_stdin()?;
        Ok(read_from(io::stdin().lock(), limit).with_path("read", path)?)
    } else {
        Ok(read_stream(path, limit)?)
    }
}

/// Marks stdin as read. A second reader of stdin would find nothing.
pub fn take_stdin() -> Result<(), ConsoleError> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::Relaxed) {
        Err(usage("`-` is stdin, which the command reads only once; write the other input to a file"))
    } else {
        Ok(())
    }
}

/// Flushes, so that a reader gets the output before the command continues.
pub fn print(text: &str) -> Result<(), ConsoleError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(ConsoleError::Output)
}
