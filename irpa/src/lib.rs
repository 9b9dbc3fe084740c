//! Reads and writes IREE parameter archives (`.irpa`), and reads checkpoints.
//!
//! An [`Archive`] is a memory-mapped `.irpa` file that passed a verifier. The verifier is stricter
//! than IREE's own reader, so IREE can read a verified file safely. [`write()`] first plans the
//! layout of an archive, and then streams the data into a temporary file. The function renames the
//! temporary file when all data are written. A [`Checkpoint`] contains the tensors of safetensors
//! files or of a [`Gguf`] file. [`convert_checkpoint`] writes a checkpoint to an archive.
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

mod adapted;
mod archive;
mod checkpoint;
mod convert;
mod convert_checkpoint;
#[doc(hidden)]
pub mod counts;
mod error;
mod finite;
mod gguf;
mod gguf_kind;
mod gguf_part;
mod gguf_split;
mod hub;
mod index;
mod join_problem;
mod joined;
mod layouts;
mod low_rank;
mod mapped;
mod model_files;
mod not_finite;
mod progress;
mod rows;
mod shards;
mod unsupported;
mod weight_files;
mod write;

pub use adapted::TensorChange;
pub use archive::{Archive, Entry, EntryData, Verified};
pub use checkpoint::{Checkpoint, CheckpointTensor, StoredOrder, TensorNumbers};
pub use convert::convert;
pub use convert_checkpoint::{ConvertOptions, Converted, convert_checkpoint};
pub use error::{ArchiveError, ArchiveRule, Damage, EntryProblem, GgufProblem, IndexProblem, RowsProblem};
pub use gguf::{BlockFormat, Gguf, GgufArray, GgufTensor, GgufValue, StoredNumbers};
pub use gguf_part::GgufPart;
pub use hub::HubFolder;
pub use index::{PassedOver, ShardDifference};
pub use join_problem::{JoinProblem, PartProblem};
pub use joined::{CodeOrder, Joined, JoinedFloats, JoinedIntegers};
pub use layouts::{FloatScale, FloatsLayout, IntegersLayout, JoinedLayout};
pub use low_rank::LowRank;
pub use model_files::ModelFiles;
pub use not_finite::{NotFinite, NumberPlace};
pub use progress::{Progress, Tracker, Watch};
pub use rows::{BLOCKS, BlockRows};
pub use safetensors::Dtype;
pub use unsupported::UnsupportedFormat;

pub use write::{ARCHIVE, NewEntry, Sink, WriteOptions, write};

#[cfg(test)]
mod tests;
