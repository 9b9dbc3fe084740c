//! Removes misleading messages of a plugin from the standard error of this process.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::dup;
use rustix::stdio::{dup2_stderr, stderr};

/// On processors with AVX-512, XLA prints this error of about 2,500 characters for each loaded executable,
/// although it works: it looks for LLVM's tuning preferences in a list of features. See
/// <https://github.com/openxla/xla/issues/44565>.
const PREFERENCE: &str = "Target machine feature +prefer-no-";

/// The text of the warning that the library Abseil prints before its first message.
const BEFORE_ALL: &str =
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR";

/// Captures standard error during the call, also of other threads, and prints it without misleading messages.
pub fn without_wrong_messages<T>(call: impl FnOnce() -> T) -> T {
    let _captured = Captured::begin();
    call()
}

/// Redirects standard error into a temporary file until this guard is dropped.
struct Captured {
    stderr: OwnedFd,
    file: File,
    _only_one: MutexGuard<'static, ()>,
}

impl Captured {
    /// Redirects standard error. Returns `None` if the system cannot redirect standard error.
    fn begin() -> Option<Self> {
        static ONE: Mutex<()> = Mutex::new(());
        let only_one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let stderr = dup(stderr()).ok()?;
        let file = tempfile::tempfile().ok()?;
        dup2_stderr(&file).ok()?;
        Some(Self { stderr, file, _only_one: only_one })
    }

    fn text(&mut self) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        self.file.rewind()?;
        self.file.read_to_end(&mut text)?;
        Ok(text)
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        // If standard error or the temporary file fails, the messages are lost.
        let _ = dup2_stderr(&self.stderr);
        let _ = io::stderr().write_all(&without_wrong_lines(&self.text().unwrap_or_default()));
    }
}

fn without_wrong_lines(text: &[u8]) -> Vec<u8> {
    let is_wrong = |line: &str| line.contains(PREFERENCE) || line.trim_end() == BEFORE_ALL;
    let lines = text.split_inclusive(|&byte| byte == b'\n');
    lines.filter(|line| !is_wrong(&String::from_utf8_lossy(line))).flatten().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_wrong_lines_are_removed() {
        let text = format!("{BEFORE_ALL}\nE0000 {PREFERENCE}gather is not\nE0000 another\nno end");
        assert_eq!(without_wrong_lines(text.as_bytes()), b"E0000 another\nno end");
    }
}
