//! Fuzz targets for all readers of untrusted bytes. A reader may return an error, and must do nothing else.
//!
//! A target calls one reader in the same way as the command line. `tests/short.rs` runs every target on its corpus
//! and on some hundred variations of it. `cargo xtask fuzz TARGET` searches for further inputs with libFuzzer.

mod archive;
mod chat_template;
mod config;
mod constraint;
mod gguf;
mod index;
mod manifest;
mod model;
mod safetensors;
mod tokenizer;
mod trace_text;

/// The modules of `tracewright-macros`.
#[path = "../../../dsl/macros/src"]
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
    mod passing;
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

/// Bytes of memory that a reader may use in addition to the size of its input.
pub const ROOM: usize = 16 << 20;

/// A reader of untrusted bytes.
#[derive(Clone, Copy)]
pub struct FuzzTarget {
    /// The name, which is also that of the corpus.
    pub name: &'static str,
    /// Writes further files into the folder of the input.
    prepare: fn(&Path),
    /// Reads the bytes, in a folder in which it may write them to a file.
    read: fn(&Path, &[u8]),
    /// Bytes of memory that the reader may use in addition to the size of its input.
    room: usize,
}

/// A target, and the folder for its input.
pub struct FuzzRun {
    target: FuzzTarget,
    folder: TempDir,
}

/// A failure that no input may cause.
#[derive(Debug, thiserror::Error)]
pub enum FuzzFailure {
    #[error("the reader panicked: {0}")]
    Panic(String),
    /// The reader used too much memory.
    #[error("the reader took {taken} bytes of memory for {length} bytes of input, expected at most {most}")]
    Memory {
        taken: usize,
        length: usize,
        /// The bytes of memory that are allowed.
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
    // The library that compiles them has limits of its own, and `tracewright` follows them in a process.
    FuzzTarget {
        room: tracewright::files::limits::GRAMMAR_MEMORY as usize,
        ..target("schema", constraint::read_schema)
    },
    FuzzTarget {
        room: tracewright::files::limits::GRAMMAR_MEMORY as usize,
        ..target("grammar", constraint::read_grammar)
    },
];

impl FuzzTarget {
    /// The target with this name. If the name is a constant, the program contains only this target.
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

    /// Prepares the target. It silences panics from now on.
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
    /// Runs the target on these bytes.
    ///
    /// # Errors
    /// If the reader panics, or uses too much memory.
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

/// Whether two names are equal. A `const fn` cannot use `==` here.
const fn same(a: &[u8], b: &[u8]) -> bool {
    match (a, b) {
        ([], []) => true,
        ([first, a @ ..], [other, b @ ..]) => *first == *other && same(a, b),
        _ => false,
    }
}

/// The message of the last panic.
fn last_panic() -> std::sync::MutexGuard<'static, String> {
    static LAST: Mutex<String> = Mutex::new(String::new());
    LAST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The value that was read. An error is formatted, like for a user, and dropped.
fn said<T, E: Error + 'static>(read: Result<T, E>) -> Option<T> {
    read.map_err(|error| WithCauses(&error).to_string()).ok()
}

/// Writes a file with these bytes.
fn written(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    #[allow(clippy::expect_used, reason = "nothing can be tested then")]
    std::fs::write(&path, bytes).expect("a temporary file");
    path
}
