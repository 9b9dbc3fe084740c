//! Writes files atomically, so that an incomplete file never appears, and reads untrusted files
//! with limits on their size.
//!
//! [`NewFile`] writes a file under a temporary name and then renames it. A new file replaces an existing file
//! only if the two files have the same [`FileKind`]. [`read()`] accepts regular files up to a size limit. The
//! module [`limits`] contains the limits for all files that Tracewright reads.

mod exact;
mod json;
mod kind;
mod leftovers;
pub mod limits;
mod module_cache;
mod new_file;
mod new_folder;
mod owned;
mod read;
mod stand_in;

/// The names of the files that contain a model's tokenizer, chat template and stop tokens.
pub const TOKENIZER_FILES: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
];

pub use exact::{exact_json, exact_number, parse_exact, python_float, with_exact_numbers};
pub use json::{as_written, parse_json, with_json};
pub use kind::{FileKind, NotReplaced};
pub use leftovers::Scratch;
pub use module_cache::ModuleCache;
pub use new_file::NewFile;
pub use new_folder::NewFolder;
pub use owned::{FolderLock, is_one_of};
pub use read::{
    check_json, json_text, read, read_from, read_json, read_stream, read_text, regular, unmarked,
    without_mark,
};
pub use stand_in::{BrokenLink, StandIn, is_there};
