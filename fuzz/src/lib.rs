//! What somebody else's bytes may do to our readers: get an error from them, and nothing else.
//!
//! A target is one reader, used as the command line uses it. `tests/short.rs` has every target read its corpus and some
//! thousand variations of it; `cargo xtask fuzz TARGET` has libFuzzer look for what nobody thought of.

mod archive;
mod chat_template;
mod config;
mod gguf;
mod index;
mod manifest;
mod model;
mod safetensors;
mod tokenizer;
mod trace_text;

/// The modules of `tracewright-macros`.
#[path = "../../dsl/macros/src"]
mod macros {
    mod ast;
    mod causal;
    mod check;
    mod context;
    pub mod expand;
    mod extents;
    mod generate;
    mod keys;
    mod leaf;
    mod length;
    mod parse;
    mod paths;
    mod skeleton;
}

use std::error::Error;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};

use peak_alloc::PeakAlloc;
use tempfile::TempDir;
use tracewright::errors::WithCauses;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Bytes of memory that a reader may take beside as many as it reads.
pub const ROOM: usize = 16 << 20;

/// A reader of bytes that somebody else made.
#[derive(Clone, Copy)]
pub struct FuzzTarget {
    /// Its name, which is that of its corpus.
    pub name: &'static str,
    /// Puts what stands beside the file into its folder.
    prepare: fn(&Path),
    /// Reads the bytes, in a folder where a file of them may lie.
    read: fn(&Path, &[u8]),
    /// Bytes of memory that it may take beside as many as it reads.
    room: usize,
}

/// A target and the folder in which it reads.
pub struct FuzzRun {
    target: FuzzTarget,
    folder: TempDir,
}

/// What no bytes may do.
#[derive(Debug, thiserror::Error)]
pub enum FuzzFailure {
    #[error("it panicked: {0}")]
    Panic(String),
    /// The reader took too much memory.
    #[error("it took {taken} bytes of memory for {length} bytes, at most {most} are right")]
    Memory {
        /// Bytes of memory.
        taken: usize,
        /// Bytes read.
        length: usize,
        /// Bytes of memory that would be right.
        most: usize,
    },
}

const fn target(name: &'static str, read: fn(&Path, &[u8])) -> FuzzTarget {
    FuzzTarget { name, prepare: |_| {}, read, room: ROOM }
}

pub const TARGETS: &[FuzzTarget] = &[
    // Of which a network of as many layers as there may be takes most, when it is recorded.
    FuzzTarget { room: 4 * ROOM, ..target("config", config::read) },
    FuzzTarget { prepare: index::prepare, ..target("index", index::read) },
    target("safetensors", safetensors::read),
    target("gguf", gguf::read),
    target("irpa", archive::read),
    target("trace", trace_text::read),
    // A template is a program. What it may take the system sees to, when `tracewright prompt` renders it.
    FuzzTarget {
        room: tracewright::files::limits::TEMPLATE_MEMORY as usize,
        ..target("template", chat_template::read)
    },
    target("tokenizer", tokenizer::read),
    target("manifest", manifest::read),
    target("model", model::read),
];

impl FuzzTarget {
    /// The target of this name. Where the name is a constant, a program has this one alone.
    pub const fn named(name: &str) -> Option<Self> {
        let mut left = TARGETS;
        while let [target, others @ ..] = left {
            if same(target.name.as_bytes(), name.as_bytes()) {
                return Some(*target);
            }
            left = others;
        }
        None
    }

    /// Makes ready to read. Panics are quiet from now on.
    ///
    /// # Panics
    /// If there is no folder for temporary files.
    pub fn start(self) -> FuzzRun {
        static QUIET: Once = Once::new();
        QUIET.call_once(|| panic::set_hook(Box::new(|info| *last_panic() = info.to_string())));
        #[allow(clippy::expect_used, reason = "nothing can be tested then")]
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        (self.prepare)(folder.path());
        FuzzRun { target: self, folder }
    }
}

impl FuzzRun {
    /// Has the target read these bytes.
    ///
    /// # Errors
    /// What it should not have done.
    pub fn check(&self, bytes: &[u8]) -> Result<(), FuzzFailure> {
        MEMORY.reset_peak_usage();
        let before = MEMORY.current_usage();
        let read = panic::catch_unwind(AssertUnwindSafe(|| (self.target.read)(self.folder.path(), bytes)));
        read.map_err(|_| FuzzFailure::Panic(last_panic().clone()))?;
        let taken = MEMORY.peak_usage().saturating_sub(before);
        let (length, most) = (bytes.len(), bytes.len() + self.target.room);
        if taken > most { Err(FuzzFailure::Memory { taken, length, most }) } else { Ok(()) }
    }
}

/// Whether two names are the same; `==` is not for constants.
const fn same(a: &[u8], b: &[u8]) -> bool {
    match (a, b) {
        ([], []) => true,
        ([first, a @ ..], [other, b @ ..]) => *first == *other && same(a, b),
        _ => false,
    }
}

/// What the last panic said.
fn last_panic() -> std::sync::MutexGuard<'static, String> {
    static LAST: Mutex<String> = Mutex::new(String::new());
    LAST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was read, if it is right; else its message is made, as a user would see it.
fn said<T, E: Error + 'static>(read: Result<T, E>) -> Option<T> {
    read.map_err(|error| WithCauses(&error).to_string()).ok()
}

/// A file of these bytes.
fn written(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    #[allow(clippy::expect_used, reason = "nothing can be tested then")]
    std::fs::write(&path, bytes).expect("a temporary file");
    path
}
