//! [`ArchiveError`] and the errors that it wraps.

use crate::UnsupportedFormat;
use errors::{FileError, LISTED};
use ops::{ElementType, TensorType};
use safetensors::{Dtype, SafeTensorError};
use std::{fmt, path::PathBuf};

/// Errors of block-quantized matrices in a safetensors file.
#[derive(Debug, thiserror::Error)]
pub enum RowsProblem {
    #[error("the metadata of the archive do not describe quantized matrices: {0}")]
    Json(serde_json::Error),
    #[error("the archive has no tensor `{0}`, but its metadata describe this tensor")]
    Missing(String),
    #[error("the tensor `{name}` is quantized as `{format}`, expected q8, q4, q4_k or mxfp4")]
    Format { name: String, format: String },
    #[error(
        "the tensor `{name}` has {found} bytes of {dtype:?}, expected {expected} bytes of U8 for its \
        quantized blocks"
    )]
    Bytes { name: String, dtype: Dtype, found: usize, expected: usize },
}

/// Errors of archives, checkpoints and conversions between them.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error(transparent)]
    File(#[from] FileError),
    /// The disk has too little free space for the archive.
    #[error(
        "no room for `{path}`: the file needs {needed} bytes, {}; free some space, or write to another disk",
        available.map_or("the file system or quota is full".into(), |bytes| format!("{bytes} are available"))
    )]
    DiskFull {
        path: PathBuf,
        needed: u64,
        /// The number of free bytes, if the file system reports it.
        available: Option<u64>,
    },
    /// The progress callback stopped the operation.
    #[error("stopped on request while working on `{path}`")]
    Cancelled { path: PathBuf },
    /// The archive violates a rule of the format.
    #[error(
        "`{path}` is not a valid parameter archive: at byte {offset}, {rule}: expected {expected}, found {found}"
    )]
    Archive { path: PathBuf, offset: u64, rule: ArchiveRule, expected: String, found: String },
    /// The data of archive entries differ from their hashes.
    #[error("`{path}` is damaged: {}; write the archive again", List(damaged))]
    Content { path: PathBuf, damaged: Vec<Damage> },
    #[error("cannot write an entry `{name}`: {problem}")]
    Entry { name: String, problem: EntryProblem },
    /// The source of an entry returned more or fewer bytes than its type takes.
    #[error("the data of the archive entry `{name}` have {found} bytes, expected {expected}")]
    SourceLength {
        name: String,
        expected: u64,
        /// The number of bytes that the source wrote. If the source wrote too many bytes, the count includes
        /// the first write that exceeded the planned size.
        found: u64,
    },
    /// The conversion between two element types is not defined.
    #[error(
        "cannot convert {from} to {to}: only f32, f16 and bf16 convert to each other; declare the tensor as {from}"
    )]
    Conversion { from: ElementType, to: ElementType },
    /// The source and the destination of a conversion have different numbers of elements.
    #[error(
        "cannot convert {source_bytes} bytes of {from} into {target_bytes} bytes of {to}: the numbers of \
        elements differ"
    )]
    ConversionLength { from: ElementType, to: ElementType, source_bytes: usize, target_bytes: usize },
    /// The GGUF file has errors. The error lists all of them.
    #[error("`{path}` is not a readable GGUF file: {}", List(problems))]
    Gguf {
        path: PathBuf,
        /// All problems of the file, in order. If a problem prevents further reading, it is the last problem
        /// in the list.
        problems: Vec<GgufProblem>,
    },
    /// The tensor is stored in quantized blocks, but the caller needs an element type.
    #[error(
        "`{path}`: the tensor `{name}` is stored in quantized blocks of {format}, expected single numbers"
    )]
    Blocks { path: PathBuf, name: String, format: &'static str },
    /// The quantized matrices of a safetensors file are not valid.
    #[error("`{path}`: {problem}; quantize the model again")]
    Rows { path: PathBuf, problem: RowsProblem },
    /// The checkpoint contains an element type that Tracewright does not support.
    #[error(
        "`{path}`: the tensor `{name}` is stored as {dtype}; expected one of F32, F16, BF16, I32, I8, BOOL: \
        save the checkpoint with one of these types"
    )]
    Dtype { path: PathBuf, name: String, dtype: Dtype },
    /// The file or directory has an unsupported format.
    #[error("`{path}` is {format}")]
    Foreign {
        path: PathBuf,
        /// The unsupported format, whose message explains how to fix the error.
        format: UnsupportedFormat,
    },
    /// The path is a model folder in the Hugging Face cache, but Tracewright cannot tell which snapshot to use.
    #[error(
        "`{path}` is a download folder of the Hugging Face hub with {}",
        match &snapshots[..] {
            [] => "no snapshot; download the model again".into(),
            several => format!("several snapshots; name one of them: {}", List(several)),
        }
    )]
    Snapshots { path: PathBuf, snapshots: Vec<String> },
    /// The directory contains no checkpoint.
    #[error(
        "no checkpoint in `{path}`: expected `model.safetensors` or `model.safetensors.index.json`, found {}",
        match &found[..] {
            [] => "no weight files".into(),
            [one] => format!("`{one}`; if the whole model is in it, rename it to `model.safetensors`"),
            several => format!("{}; download the index, which says what is in which", List(several)),
        }
    )]
    NoCheckpoint { path: PathBuf, found: Vec<String> },
    /// The safetensors crate rejects the file.
    #[error("`{path}` ({size} bytes) is not a valid safetensors file; download or save the file again")]
    Safetensors { path: PathBuf, size: u64, source: SafeTensorError },
    /// A safetensors file is truncated, or has bytes after its end.
    #[error(
        "`{path}` is {}: its header declares {expected} bytes, found {found}; download or save the file again",
        if found < expected { "truncated" } else { "too long" }
    )]
    SafetensorsLength {
        path: PathBuf,
        /// The size that the header implies, or a lower bound of this size.
        expected: u64,
        found: u64,
    },
    /// The index is not valid JSON, or has another structure.
    #[error("`{path}` is not a valid index of a checkpoint")]
    Index { path: PathBuf, source: serde_json::Error },
    /// The index and its shards contradict each other. The error lists all contradictions.
    #[error("`{path}` does not match its shards: {}", List(problems))]
    IndexMismatch { path: PathBuf, problems: Vec<IndexProblem> },
    #[error("no tensor `{name}` in `{path}`")]
    NoTensor { path: PathBuf, name: String },
    /// The archive would replace a file of its own checkpoint.
    #[error("`{path}` is a file of the checkpoint itself; write the archive to another path")]
    OutputIsInput { path: PathBuf },
}

impl ArchiveError {
    pub(crate) fn entry(name: &str, problem: EntryProblem) -> Self {
        Self::Entry { name: name.into(), problem }
    }
}

/// The rules of the archive format that [`Archive::open`](crate::Archive::open) checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ArchiveRule {
    Magic,
    /// The version of the archive is 0.0.
    Version,
    /// The header has 88 bytes.
    HeaderSize,
    /// The header does not link to another archive in the same file.
    NextHeader,
    Flags,
    /// The segments are inside the file, in the order entries, metadata, storage. No segment is longer than
    /// its content.
    Segment,
    /// The file ends at the end of the storage segment, rounded up to a page.
    FileSize,
    /// The table has exactly as many entries as the header declares.
    EntryCount,
    /// The size of an entry matches its type.
    EntrySize,
    /// An entry is either skipped, a repeated pattern, or data.
    EntryType,
    /// Each name, each metadata block and each tensor's data are inside their segment.
    Range,
    Name,
    Order,
    /// Alignments are powers of two. Data have their own alignment, which is at least 64 bytes.
    Alignment,
    /// A pattern of 1, 2, 4, 8 or 16 bytes repeats a whole number of times.
    Splat,
    /// Ranges do not overlap.
    Overlap,
    /// Bytes between ranges are zero.
    Gap,
    /// Tracewright's metadata are well formed, and match the size of the data.
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
    #[error("a name must not be empty")]
    Unnamed,
    #[error("{}", match .0 { Some(ty) => format!("{ty} is larger than a file can be"),
        None => "the archive becomes larger than a file can be".into() })]
    TooLarge(Option<TensorType>),
    /// The pattern's size does not divide the entry's size, or the pattern has an invalid size.
    #[error(
        "a constant entry repeats a pattern of 1, 2, 4, 8 or 16 bytes a whole number of times; found a \
        pattern of {pattern} bytes for {length} bytes"
    )]
    Splat { pattern: usize, length: u64 },
}

/// A problem of a GGUF file that the reader reports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufProblem {
    /// The file does not begin with `GGUF`.
    #[error("the file does not begin with `GGUF`; download the file again")]
    Magic,
    #[error("the version of the file is {found}, expected 2 or 3; convert the model again")]
    Version { found: u32 },
    /// The numbers in the file are big-endian.
    #[error(
        "the numbers in the file are big-endian, expected little-endian; convert the file with \
        `gguf-convert-endian` of the package `gguf`"
    )]
    BigEndian,
    #[error(
        "the file is cut off: {what} at byte {at} takes {needed} bytes, and the file has {size}; download \
        the file again"
    )]
    CutOff {
        /// The item in the file that is truncated.
        what: &'static str,
        at: u64,
        /// The number of bytes that the item needs.
        needed: u64,
        size: u64,
    },
    #[error("the file has {found} {what}, expected at most {most}")]
    Count {
        /// The kind of item that occurs too often in the file.
        what: &'static str,
        found: u64,
        /// The largest number of items that the reader accepts.
        most: usize,
    },
    /// A string is not UTF-8.
    #[error("{what} at byte {at} is not UTF-8")]
    Text { what: &'static str, at: u64 },
    /// The type of a value is unknown, or an array contains arrays.
    #[error(
        "the key `{key}` has values of type number {found}, expected 0 to 8 or 10 to 12, or one array of \
        these types"
    )]
    ValueType { key: String, found: u32 },
    /// A key occurs twice.
    #[error("the key `{key}` occurs twice")]
    KeyTwice { key: String },
    /// The alignment of tensors is not allowed.
    #[error("`general.alignment` is {found}, expected a power of two from 8 to 1048576")]
    Alignment { found: i128 },
    /// The file contains only a part of a model.
    #[error("the file is one of {count} parts; join the parts with `llama-gguf-split --merge` of llama.cpp")]
    Part { count: i128 },
    /// A tensor's name occurs twice.
    #[error("tensor `{name}` occurs twice")]
    TensorTwice { name: String },
    #[error("tensor `{name}` has {found} axes, at most {most} are read")]
    Rank { name: String, found: u32, most: u32 },
    /// The storage type of a tensor is not supported.
    #[error(
        "the tensor `{name}` has the type number {found} of ggml; expected F32, F16, BF16, Q4_0, Q4_1, Q5_0, \
        Q5_1, Q8_0, Q4_K, Q5_K or Q6_K: use a file with one of these"
    )]
    TensorType { name: String, found: u32 },
    /// The shape has no elements or too many elements, or its rows do not consist of whole blocks.
    #[error(
        "the tensor `{name}` has the shape {shape:?}, expected extents of at least 1 and a row length that \
        is a multiple of {together}"
    )]
    Shape {
        name: String,
        /// The extents, outermost first.
        shape: Vec<u64>,
        together: u64,
    },
    /// The data of a tensor are not aligned.
    #[error("the data of tensor `{name}` begin at {offset}, expected a multiple of {alignment}")]
    Offset {
        name: String,
        /// The offset of the data, relative to the end of the table.
        offset: u64,
        /// The alignment of the file.
        alignment: u64,
    },
    /// The data of a tensor lie beyond the end of the file.
    #[error("the data of the tensor `{name}` end {}, but the file has {size} bytes; download the file again",
        match end { Some(end) => format!("at byte {end}"), None => "beyond any file".into() })]
    Beyond { name: String, end: Option<u64>, size: u64 },
}

/// An entry whose data differ from their hash.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the data of `{name}` at byte {offset} have blake3 {found}, expected {expected}")]
pub struct Damage {
    pub name: String,
    pub offset: u64,
    pub expected: String,
    pub found: String,
}

/// A contradiction between an index and its shards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexProblem {
    /// The name of a shard is a path.
    #[error("shard `{0}` is not a plain file name")]
    ShardName(String),
    /// A shard is missing.
    #[error("shard `{0}` is missing")]
    MissingShard(String),
    /// A shard cannot be read.
    #[error("shard `{shard}` is broken: {reason}")]
    BrokenShard { shard: String, reason: String },
    /// A shard lacks a tensor.
    #[error("tensor `{name}` is not in shard `{shard}`")]
    MissingTensor {
        name: String,
        /// The shard that the index lists.
        shard: String,
    },
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
