//! Reads and writes IREE parameter archives, byte for byte.
//!
//! An [`Archive`] is a memory-mapped `.irpa` file that passed a verifier. The verifier is stricter than
//! IREE's own reader, so the file is safe for IREE. [`write()`] plans the layout first and then streams the
//! data. The file gets its name only when it is complete. A [`Checkpoint`] contains the tensors of
//! safetensors files or of a [`Gguf`] file. [`convert_checkpoint`] writes a checkpoint to an archive.
//!
//! ```
//! use ops::{ElementType, TensorType};
//! use tracewright_irpa::{Archive, ArchiveError, NewEntry, WriteOptions, write};
//!
//! let folder = tempfile::tempdir().unwrap();
//! let path = folder.path().join("model.irpa");
//! let entries = vec![
//!     NewEntry::tensor("weight", TensorType::new(ElementType::F32, [2])),
//!     NewEntry::splat("bias", TensorType::new(ElementType::Bf16, [640]), &[0x80, 0x3f]),
//! ];
//! write(&path, entries, WriteOptions::default(), |_entry, sink| {
//!     sink.write(&1f32.to_le_bytes())?;
//!     sink.write(&2f32.to_le_bytes())
//! })?;
//! let archive = Archive::open(&path)?;
//! assert_eq!(archive.data("weight"), Some(&[0, 0, 0x80, 0x3f, 0, 0, 0, 0x40][..]));
//! # Ok::<(), ArchiveError>(())
//! ```

mod archive;
mod checkpoint;
mod convert;
mod error;
mod gguf;
mod hub;
mod index;
mod progress;
mod rows;
mod shards;
mod unsupported;
mod weight_files;
mod write;

pub use archive::{Archive, Entry, EntryData, Verified};
pub use checkpoint::{
    Checkpoint, CheckpointTensor, ConvertOptions, Converted, StoredOrder, TensorNumbers, convert_checkpoint,
};
pub use convert::convert;
pub use error::{ArchiveError, ArchiveRule, Damage, EntryProblem, GgufProblem, IndexProblem, RowsProblem};
pub use gguf::{BlockFormat, Gguf, GgufArray, GgufTensor, GgufValue, StoredNumbers};
pub use hub::HubFolder;
pub use index::{PassedOver, ShardDifference};
pub use progress::{Progress, Watch};
pub use rows::{BLOCKS, BlockRows};
pub use safetensors::Dtype;
pub use unsupported::UnsupportedFormat;

pub use write::{ARCHIVE, NewEntry, Sink, WriteOptions, write};

use errors::WithPath as _;
use memmap2::Mmap;
use std::{fs::File, path::Path, sync::Arc};

fn map(path: &Path) -> Result<Arc<Mmap>, ArchiveError> {
    let file = files::regular(path).and_then(|()| File::open(path)).with_path("open", path)?;
    // SAFETY: the mapping is read-only and private to the value returned. What the type system cannot see is
    // another process that changes the file meanwhile: archives are published by rename and never modified in
    // place, checkpoints are read-only by convention, and no decision made while verifying is trusted to hold
    // for the bytes of the data themselves, which are plain numbers.
    #[allow(unsafe_code)]
    let map = unsafe { Mmap::map(&file) };
    Ok(Arc::new(map.with_path("map", path)?))
}

#[cfg(test)]
mod tests;
