//! Files: those that appear whole or not at all, and what is read of those that somebody else made.
//!
//! [`NewFile`] is written beside its place and renamed into it, and replaces nothing but a file of its [`FileKind`]. [`read()`] takes regular files that are not larger
//! than a limit; the [`limits`] of all that is read stand in one table.

mod json;
mod kind;
mod leftovers;
pub mod limits;
mod new_file;
mod new_folder;
mod owned;
mod read;
mod stand_in;

pub use json::{as_written, parse_json, with_json};
pub use kind::{FileKind, NotReplaced};
pub use leftovers::Scratch;
pub use new_file::NewFile;
pub use new_folder::NewFolder;
pub use owned::{FolderLock, is_one_of};
pub use read::{check_json, read, read_from, read_json, read_stream, read_text, regular};
pub use stand_in::{BrokenLink, StandIn, is_there};
