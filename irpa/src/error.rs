//! Declares [`ArchiveError`] and the errors that an [`ArchiveError`] contains.

use crate::{JoinProblem, NotFinite, UnsupportedFormat};
use errors::{FileError, LISTED};
use ops::WeightFormat;
use ops::format::BlockFormat;
use ops::{ElementType, TensorType};
use safetensors::{Dtype, SafeTensorError};
use std::{fmt, path::PathBuf};

/// A problem with the block-quantized matrices in a safetensors file.
#[derive(Debug, thiserror::Error)]
pub enum RowsProblem {
    #[error("the metadata of the archive do not describe quantized matrices: {0}")]
    Json(serde_json::Error),
    #[error("the archive has no tensor `{0}`, but its metadata describe this tensor")]
    Missing(String),
    #[error(
        "the tensor `{name}` is quantized as `{format}`, expected {}",
        WeightFormat::list(WeightFormat::grouped_formats())
    )]
    Format { name: String, format: String },
    #[error(
        "the tensor `{name}` has {found} bytes of {dtype:?}, expected {expected} bytes of U8 for its \
        quantized blocks"
    )]
    Bytes { name: String, dtype: Dtype, found: usize, expected: usize },
}

#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error(transparent)]
    File(#[from] FileError),
    /// The disk does not have enough free space for the archive.
    #[error(
        "the disk has no room for `{path}`: the file needs {needed} bytes, {}; free some space, or write to another disk",
        available.map_or("the file system or quota is full".into(), |bytes| format!("{bytes} are available"))
    )]
    DiskFull {
        path: PathBuf,
        needed: u64,
        /// The number of free bytes on the disk, if the file system reports the free space.
        available: Option<u64>,
    },
    /// The progress callback stopped the reading or writing operation.
    #[error("stopped on request while working on `{path}`")]
    Cancelled { path: PathBuf },
    #[error(
        "`{path}` is not a valid parameter archive: at byte {offset}, {rule}: expected {expected}, found {found}"
    )]
    Archive { path: PathBuf, offset: u64, rule: ArchiveRule, expected: String, found: String },
    /// The hash of an entry's data differs from the hash in the metadata.
    #[error("`{path}` is damaged: {}; write the archive again", List(damaged))]
    Content { path: PathBuf, damaged: Vec<Damage> },
    #[error("cannot write the archive entry `{name}`: {problem}")]
    Entry { name: String, problem: EntryProblem },
    /// The caller of the writer provided more or fewer bytes than the type of the entry requires.
    #[error("the data of the archive entry `{name}` have {found} bytes, expected {expected}")]
    SourceLength {
        name: String,
        expected: u64,
        /// Not counted after the first write that exceeds the plan.
        found: u64,
    },
    #[error(
        "cannot convert {from} to {to}: only f32, f16 and bf16 convert to each other; declare the tensor as {from}"
    )]
    Conversion { from: ElementType, to: ElementType },
    /// The source slice and the destination slice of a conversion have different numbers of elements.
    #[error(
        "cannot convert {source_bytes} bytes of {from} into {target_bytes} bytes of {to}: the numbers of \
        elements differ"
    )]
    ConversionLength { from: ElementType, to: ElementType, source_bytes: usize, target_bytes: usize },
    #[error(transparent)]
    NotFinite(Box<NotFinite>),
    #[error("`{path}` is not a readable GGUF file: {}", List(problems))]
    Gguf {
        path: PathBuf,
        /// In the order found; the last one may have prevented further reading.
        problems: Vec<GgufProblem>,
    },
    /// The tensor is stored in quantized blocks, but the caller expects plain elements.
    #[error(
        "`{path}`: the tensor `{name}` is stored in quantized blocks of {format}, expected unquantized numbers"
    )]
    Blocks { path: PathBuf, name: String, format: &'static str },
    /// The tensors of quantized modules are together no weights.
    #[error("the quantized weights in `{path}` have {} problem(s): {}", .problems.len(), List(problems))]
    Joined { path: PathBuf, problems: Vec<JoinProblem> },
    /// The description of quantized matrices in a safetensors file is not valid.
    #[error("`{path}`: {problem}; quantize the model again")]
    Rows { path: PathBuf, problem: RowsProblem },
    #[error(
        "`{path}`: the tensor `{name}` is stored as {dtype}, expected F32, F16, BF16, I32, I8 or BOOL; \
        save the checkpoint with one of these types"
    )]
    Dtype { path: PathBuf, name: String, dtype: Dtype },
    #[error("`{path}` is {format}")]
    Foreign {
        path: PathBuf,
        /// The unsupported format. The display text of the field `format` explains how to fix the error.
        format: UnsupportedFormat,
    },
    /// The path is a model folder in the Hugging Face cache, but Tracewright cannot tell which snapshot to use.
    #[error(
        "`{path}` is a model folder of the Hugging Face cache with {}",
        match &snapshots[..] {
            [] => "no snapshot; download the model again".into(),
            several => format!("several snapshots; select one of these snapshots: {}", List(several)),
        }
    )]
    Snapshots { path: PathBuf, snapshots: Vec<String> },
    #[error(
        "no checkpoint in `{path}`: expected `model.safetensors` or `model.safetensors.index.json`, found {}",
        match &found[..] {
            [] => "no weight files".into(),
            [one] => format!("`{one}`; if this file contains the whole model, rename the file to `model.safetensors`"),
            several => format!("{}; download the index, which lists the tensors of each file", List(several)),
        }
    )]
    NoCheckpoint { path: PathBuf, found: Vec<String> },
    #[error("`{path}` ({size} bytes) is not a valid safetensors file; download or save the file again")]
    Safetensors { path: PathBuf, size: u64, source: SafeTensorError },
    /// A safetensors file is shorter or longer than its header declares.
    #[error(
        "`{path}` is {}: its header declares {expected} bytes, found {found}; download or save the file again",
        if found < expected { "truncated" } else { "too long" }
    )]
    SafetensorsLength {
        path: PathBuf,
        /// From the header; a lower bound if that is truncated.
        expected: u64,
        found: u64,
    },
    #[error("`{path}` is not a valid index of a checkpoint")]
    Index { path: PathBuf, source: serde_json::Error },
    #[error("`{path}` does not match its shards: {}", List(problems))]
    IndexMismatch { path: PathBuf, problems: Vec<IndexProblem> },
    #[error("`{path}` contains no tensor `{name}`")]
    NoTensor { path: PathBuf, name: String },
    /// The new archive would replace a file of the checkpoint that is being converted.
    #[error("`{path}` is a file of the checkpoint itself; write the archive to another path")]
    OutputIsInput { path: PathBuf },
}

impl From<NotFinite> for ArchiveError {
    fn from(error: NotFinite) -> Self {
        Self::NotFinite(Box::new(error))
    }
}

impl ArchiveError {
    pub(crate) fn entry(name: &str, problem: EntryProblem) -> Self {
        Self::Entry { name: name.into(), problem }
    }
}

/// A rule that [`Archive::open`](crate::Archive::open) checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ArchiveRule {
    Magic,
    /// 0.0.
    Version,
    /// 88 bytes.
    HeaderSize,
    /// The header must not link to another archive in the same file.
    NextHeader,
    Flags,
    /// Entries, metadata, storage, none longer than its content.
    Segment,
    /// The file must end at the end of the storage segment, rounded up to a multiple of the page size.
    FileSize,
    /// The table of entries must have exactly as many entries as the archive's header declares.
    EntryCount,
    EntrySize,
    /// The type of an entry must be one of: skipped, repeated pattern, data.
    EntryType,
    /// Name and metadata lie in the metadata segment, data in the storage segment.
    Range,
    Name,
    Order,
    /// A power of two, at least 64; data begins at a multiple of it.
    Alignment,
    /// A pattern of 1, 2, 4, 8 or 16 bytes, of which the size is a multiple.
    Splat,
    /// The ranges of the header, the table and the entries must not overlap.
    Overlap,
    /// All bytes of the file outside of the header, the table and the entries must be zero.
    Gap,
    /// Metadata from Tracewright must be well formed, and must match the size of the data.
    Metadata,
}

impl fmt::Display for ArchiveRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Magic => "magic",
            Self::Version => "version",
            Self::HeaderSize => "header size",
            Self::NextHeader => "link to another archive",
            Self::Flags => "flags",
            Self::Segment => "segment",
            Self::FileSize => "file size",
            Self::EntryCount => "entry count",
            Self::EntrySize => "entry size",
            Self::EntryType => "entry type",
            Self::Range => "range",
            Self::Name => "name",
            Self::Order => "order of names",
            Self::Alignment => "alignment",
            Self::Splat => "splat",
            Self::Overlap => "overlap",
            Self::Gap => "gap",
            Self::Metadata => "metadata",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryProblem {
    #[error("another entry has the same name")]
    Duplicate,
    #[error("the name of the entry is empty")]
    Unnamed,
    #[error("{}", match .0 { Some(ty) => format!("the type {ty} needs more bytes than a file can contain"),
        None => "the archive needs more bytes than a file can contain".into() })]
    TooLarge(Option<TensorType>),
    /// The size of the repeated pattern is invalid, or does not divide the size of the archive entry.
    #[error(
        "the entry repeats a pattern of {pattern} bytes to fill {length} bytes, expected a pattern of 1, 2, 4, 8 \
        or 16 bytes that divides the length"
    )]
    Splat { pattern: usize, length: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufProblem {
    #[error("the file does not begin with `GGUF`; download the file again")]
    Magic,
    #[error("the version of the file is {found}, expected 2 or 3; convert the model again")]
    Version { found: u32 },
    #[error(
        "the numbers in the file are big-endian, expected little-endian; convert the file with \
        `gguf-convert-endian` of the package `gguf`"
    )]
    BigEndian,
    #[error(
        "the file is cut off: {what} at byte {at} takes {needed} bytes, but the file has only {size} \
        bytes; download the file again"
    )]
    CutOff {
        /// The item at which the file ends, such as a tensor's name.
        what: &'static str,
        at: u64,
        needed: u64,
        size: u64,
    },
    #[error("the file has {found} {what}, expected at most {most}")]
    Count {
        /// The kind of items of which the file contains too many, such as tensors.
        what: &'static str,
        found: u64,
        /// The largest number of items of the kind `what` that the reader accepts.
        most: usize,
    },
    #[error("{what} at byte {at} is not UTF-8")]
    Text { what: &'static str, at: u64 },
    #[error(
        "the key `{key}` has the value type {found}, expected a type from 0 to 8 or from 10 to 12, or one \
        array of these types"
    )]
    ValueType { key: String, found: u32 },
    #[error("the key `{key}` occurs twice")]
    KeyTwice { key: String },
    #[error("`general.alignment` is {found}, expected a power of two from 8 to 1048576")]
    Alignment { found: i128 },
    #[error("`split.count` is {count}, expected at most {most}")]
    SplitCount { count: i128, most: i128 },
    /// The file contains a part of a model, and its name does not tell the names of the other parts.
    #[error(
        "`split.count` is {count}, and the file is part {number} of the model, expected a name that ends with \
        `-{number:05}-of-{count:05}.gguf`; rename the file as it was published"
    )]
    SplitName {
        /// From 1.
        number: i128,
        count: i128,
    },
    #[error(
        "the file is missing, which is part {number} of {count} of the model; download all parts into one folder"
    )]
    SplitMissing { number: i128, count: i128 },
    #[error(
        "`{key}` is {found}, expected {expected} as in the model's first part; download all parts of the model again"
    )]
    SplitKey { key: &'static str, found: i128, expected: i128 },
    #[error("`{key}` has another value than in the first part, so the file is a part of another model")]
    SplitOther { key: String },
    #[error(
        "all parts of the model together have {found} tensors, expected {expected} (`split.tensors.count`); download \
        all parts of the model again"
    )]
    SplitTensors { found: i128, expected: i128 },
    #[error("tensor `{name}` occurs twice")]
    TensorTwice { name: String },
    #[error("tensor `{name}` has {found} axes, expected at most {most}")]
    Rank { name: String, found: u32, most: u32 },
    #[error(
        "the tensor `{name}` has the ggml type {found}, expected F32, F16, BF16{}; use a file with one of \
        these types",
        BlockTypes
    )]
    TensorType { name: String, found: u32 },
    #[error(
        "the tensor `{name}` has the shape {shape:?}, expected extents of at least 1 and a row length that \
        is a multiple of {together}"
    )]
    Shape {
        name: String,
        /// The sizes of the tensor's axes, beginning with the outermost axis.
        shape: Vec<u64>,
        together: u64,
    },
    /// The data of a tensor do not begin at a multiple of the alignment.
    #[error("the data of tensor `{name}` begin at byte {offset}, expected a multiple of {alignment}")]
    Offset {
        name: String,
        /// The offset of the tensor's data, relative to the end of the table of tensors.
        offset: u64,
        alignment: u64,
    },
    #[error(
        "the data of the tensors `{first}` and `{second}` overlap at byte {at} of the file, expected separate data; \
        convert the model again"
    )]
    Overlap { first: String, second: String, at: u64 },
    #[error("the data of the tensor `{name}` end {}, but the file has {size} bytes; download the file again",
        match end { Some(end) => format!("at byte {end}"), None => "beyond the largest possible file".into() })]
    Beyond { name: String, end: Option<u64>, size: u64 },
}

/// Lists the block formats that Tracewright reads, at the end of a longer list.
struct BlockTypes;

impl fmt::Display for BlockTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [formats @ .., last] = BlockFormat::ALL else { unreachable!("there are block formats") };
        formats.iter().try_for_each(|format| write!(f, ", {format}"))?;
        write!(f, " or {last}")
    }
}

/// An archive entry whose data do not have the hash that the metadata declare.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the data of `{name}` at byte {offset} have the blake3 hash {found}, expected {expected}")]
pub struct Damage {
    pub name: String,
    pub offset: u64,
    pub expected: String,
    pub found: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexProblem {
    #[error("shard `{0}` is not a plain file name")]
    ShardName(String),
    #[error("shard `{0}` is missing")]
    MissingShard(String),
    #[error("shard `{shard}` is broken: {reason}")]
    BrokenShard { shard: String, reason: String },
    #[error("tensor `{name}` is not in shard `{shard}`")]
    MissingTensor { name: String, shard: String },
}

struct List<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, item) in self.0.iter().take(LISTED).enumerate() {
            write!(f, "{}{item}", if i == 0 { "" } else { "; " })?;
        }
        match self.0.len().checked_sub(LISTED) {
            Some(more @ 1..) => write!(f, "; and {more} more"),
            _ => Ok(()),
        }
    }
}
