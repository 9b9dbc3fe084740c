//! What can be wrong with an archive, a checkpoint or the way from one to the other.

use crate::UnsupportedFormat;
use errors::{FileError, LISTED};
use ops::{ElementType, TensorType};
use safetensors::{Dtype, SafeTensorError};
use std::{fmt, path::PathBuf};

/// What was wrong, where, what was expected and found, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error(transparent)]
    File(#[from] FileError),
    /// The archive does not fit where it should go.
    #[error(
        "no room for `{path}`: it needs {needed} bytes, {}; free some space or write elsewhere",
        available.map_or("the file system or quota is full".into(), |bytes| format!("{bytes} are available"))
    )]
    DiskFull {
        path: PathBuf,
        needed: u64,
        /// What the file system has to give, if it says.
        available: Option<u64>,
    },
    /// The progress callback asked to stop.
    #[error("stopped on request while working on `{path}`")]
    Cancelled { path: PathBuf },
    /// An archive breaks a rule of the format.
    #[error(
        "`{path}` is not a valid parameter archive: at byte {offset}, {rule}: expected {expected}, found {found}"
    )]
    Archive {
        path: PathBuf,
        offset: u64,
        rule: ArchiveRule,
        /// What the rule asks for.
        expected: String,
        found: String,
    },
    /// The data of archive entries are not those that were written.
    #[error("`{path}` is damaged: {}; write the archive again", List(damaged))]
    Content { path: PathBuf, damaged: Vec<Damage> },
    /// An entry that cannot be written.
    #[error("cannot write an entry `{name}`: {problem}")]
    Entry {
        name: String,
        /// Why not.
        problem: EntryProblem,
    },
    /// The source of an entry gave another number of bytes than its type takes.
    #[error("the data of `{name}` have another size than planned: expected {expected} bytes, found {found}")]
    SourceLength {
        name: String,
        /// Bytes planned.
        expected: u64,
        /// Bytes given; if more than planned, counted up to the write that exceeded.
        found: u64,
    },
    /// A conversion that would have to guess.
    #[error(
        "cannot convert {from} to {to}: only f32, f16 and bf16 convert to each other; declare the tensor as {from}"
    )]
    Conversion { from: ElementType, to: ElementType },
    /// Source and destination of a conversion do not have the same number of elements.
    #[error(
        "cannot convert {source_bytes} bytes of {from} into {target_bytes} bytes of {to}: the counts differ"
    )]
    ConversionLength {
        from: ElementType,
        to: ElementType,
        /// Bytes of the source.
        source_bytes: usize,
        /// Bytes of the destination.
        target_bytes: usize,
    },
    /// A GGUF file with everything that is wrong with it.
    #[error("`{path}` is not a readable GGUF file: {}", List(problems))]
    Gguf {
        path: PathBuf,
        /// All problems; one that keeps the rest from being read is the last.
        problems: Vec<GgufProblem>,
    },
    /// A tensor in blocks where its numbers are asked for one by one.
    #[error("`{path}`: tensor `{name}` is stored in blocks, as {format}, and not number by number")]
    Blocks { path: PathBuf, name: String, format: &'static str },
    /// A checkpoint's element type that this system does not compute with.
    #[error(
        "`{path}`: tensor `{name}` is stored as {dtype}; expected one of F32, F16, BF16, I32, I8, BOOL: \
         save the checkpoint with one of these"
    )]
    Dtype { path: PathBuf, name: String, dtype: Dtype },
    /// A file or directory in another format.
    #[error("`{path}` is {format}")]
    Foreign {
        /// The file or directory.
        path: PathBuf,
        /// Which format, and what to do.
        format: UnsupportedFormat,
    },
    /// A folder of the Hugging Face hub's cache in which no snapshot is the one that is meant.
    #[error(
        "`{path}` is a download folder of the Hugging Face hub with {}",
        match &snapshots[..] {
            [] => "no snapshot; download the model again".into(),
            several => format!("several snapshots; name one of them: {}", List(several)),
        }
    )]
    Snapshots {
        path: PathBuf,
        /// The folders of its snapshots.
        snapshots: Vec<String>,
    },
    /// A directory without a checkpoint.
    #[error(
        "no checkpoint in `{path}`: expected `model.safetensors` or `model.safetensors.index.json`, found {}",
        match &found[..] {
            [] => "no weight files".into(),
            [one] => format!("`{one}`; if the whole model is in it, rename it to `model.safetensors`"),
            several => format!("{}; download the index, which says what is in which", List(several)),
        }
    )]
    NoCheckpoint {
        path: PathBuf,
        /// Safetensors files under other names.
        found: Vec<String>,
    },
    /// A file that the safetensors crate rejects.
    #[error("`{path}` ({size} bytes) is not a valid safetensors file; download or save it again")]
    Safetensors { path: PathBuf, size: u64, source: SafeTensorError },
    /// A safetensors file that is cut off or has something behind its end.
    #[error(
        "`{path}` is {}: its header asks for {expected} bytes, found {found}; download or save it again",
        if found < expected { "truncated" } else { "too long" }
    )]
    SafetensorsLength {
        path: PathBuf,
        /// The size that the header implies, or at least implies.
        expected: u64,
        /// The size of the file.
        found: u64,
    },
    /// An index that is not JSON or not an index.
    #[error("`{path}` is not a checkpoint index")]
    Index {
        path: PathBuf,
        /// What the JSON parser says.
        source: serde_json::Error,
    },
    /// An index and its shards that do not agree, with everything that is wrong.
    #[error("`{path}` does not match its shards: {}", List(problems))]
    IndexMismatch { path: PathBuf, problems: Vec<IndexProblem> },
    /// A tensor that is not in the checkpoint.
    #[error("no tensor `{name}` in `{path}`")]
    NoTensor { path: PathBuf, name: String },
    /// An archive that would replace the checkpoint that it is made from.
    #[error("`{path}` is a file of the checkpoint itself: write the archive elsewhere")]
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
    /// The file starts with `IRPA`.
    Magic,
    /// Version 0.0.
    Version,
    /// The header has 88 bytes.
    HeaderSize,
    /// One archive per file.
    NextHeader,
    /// No flag is defined.
    Flags,
    /// Segments follow each other inside the file: entries, metadata, storage, none longer than what is in it.
    Segment,
    /// The file ends where the storage segment ends, rounded up to pages.
    FileSize,
    /// The table holds as many entries as the header says, and nothing else.
    EntryCount,
    /// An entry has the size of its type.
    EntrySize,
    /// An entry is skipped, a splat or data.
    EntryType,
    /// A name, metadata or data lie inside their segment.
    Range,
    /// A name is UTF-8 and not empty.
    Name,
    /// Names are sorted and unique.
    Order,
    /// Alignments are powers of two, and data are aligned to theirs and to 64 bytes.
    Alignment,
    /// A splat repeats a pattern of 1, 2, 4, 8 or 16 bytes a whole number of times.
    Splat,
    /// No byte belongs to two things.
    Overlap,
    /// Every byte that belongs to nothing is zero.
    Gap,
    /// Metadata of ours are well formed and agree with the data's size.
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

/// Why an entry cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryProblem {
    #[error("another entry has the same name")]
    Duplicate,
    #[error("a name must not be empty")]
    Unnamed,
    /// The size does not fit a file.
    #[error("{}", match .0 { Some(ty) => format!("{ty} is larger than a file can be"),
        None => "the archive becomes larger than a file can be".into() })]
    TooLarge(Option<TensorType>),
    /// A splat's pattern does not fit its type.
    #[error(
        "a splat repeats 1, 2, 4, 8 or 16 bytes a whole number of times; found {pattern} bytes for {length}"
    )]
    Splat {
        /// Bytes of the pattern.
        pattern: usize,
        /// Bytes of the entry.
        length: u64,
    },
}

/// One thing that is wrong with a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufProblem {
    /// It begins otherwise.
    #[error("it does not begin with `GGUF`; download it again")]
    Magic,
    #[error("its version is {found}, expected 2 or 3; convert the model again")]
    Version { found: u32 },
    /// Numbers whose first byte is the highest.
    #[error(
        "its numbers are big-endian, expected little-endian; convert it with `gguf-convert-endian` of the package `gguf`"
    )]
    BigEndian,
    #[error(
        "it is cut off: {what} at byte {at} takes {needed} bytes, and the file has {size}; download it again"
    )]
    CutOff {
        /// What stands at its end.
        what: &'static str,
        at: u64,
        /// How many bytes that takes.
        needed: u64,
        /// How many there are in the file.
        size: u64,
    },
    #[error("it has {found} {what}, at most {most} are read")]
    Count {
        /// What there are too many of.
        what: &'static str,
        found: u64,
        /// How many there may be.
        most: usize,
    },
    /// A text that is none.
    #[error("{what} at byte {at} is not UTF-8")]
    Text { what: &'static str, at: u64 },
    /// A type of values that the format does not have, or arrays in an array.
    #[error("`{key}` has values of the type {found}, expected 0 to 8 or 10 to 12, or one array of them")]
    ValueType {
        key: String,
        /// The number of the type.
        found: u32,
    },
    /// A key that occurs twice.
    #[error("the key `{key}` occurs twice")]
    KeyTwice { key: String },
    /// Tensors that are aligned in another way than the format allows.
    #[error("`general.alignment` is {found}, expected a power of two from 8 to 1048576")]
    Alignment { found: i128 },
    /// A part of a model.
    #[error("it is one of {count} parts; join them with `llama-gguf-split --merge` of llama.cpp")]
    Part { count: i128 },
    /// A tensor that occurs twice.
    #[error("tensor `{name}` occurs twice")]
    TensorTwice { name: String },
    #[error("tensor `{name}` has {found} axes, at most {most} are read")]
    Rank {
        name: String,
        found: u32,
        /// How many it may have.
        most: u32,
    },
    /// Numbers that are stored in a way that is not read.
    #[error(
        "tensor `{name}` is stored as number {found} of ggml's types; expected F32, F16, BF16, Q4_0, Q4_1, Q5_0, \
         Q5_1, Q8_0, Q4_K, Q5_K or Q6_K: use a file in one of these"
    )]
    TensorType {
        name: String,
        /// The number of its type.
        found: u32,
    },
    /// A shape without numbers, with too many, or whose rows are no whole blocks.
    #[error(
        "tensor `{name}` has shape {shape:?}, expected extents from 1 on and rows of a multiple of {together}"
    )]
    Shape {
        name: String,
        /// The extents, outermost first.
        shape: Vec<u64>,
        together: u64,
    },
    /// Data at a place that is not aligned.
    #[error("the data of tensor `{name}` begin at {offset}, expected a multiple of {alignment}")]
    Offset {
        name: String,
        /// Where they begin, behind the table.
        offset: u64,
        /// What that should be a multiple of.
        alignment: u64,
    },
    /// Data that the file does not have.
    #[error("the data of tensor `{name}` end {}, and the file has {size} bytes; download it again",
        match end { Some(end) => format!("at byte {end}"), None => "beyond any file".into() })]
    Beyond {
        name: String,
        end: Option<u64>,
        /// The size of the file.
        size: u64,
    },
}

/// An entry whose data are not those that were written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the data of `{name}` at byte {offset} have blake3 {found}, expected {expected}")]
pub struct Damage {
    pub name: String,
    pub offset: u64,
    /// The hash in the entry's metadata.
    pub expected: String,
    /// The hash of the data.
    pub found: String,
}

/// One disagreement between an index and its shards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexProblem {
    /// A shard name that is a path.
    #[error("shard `{0}` is not a plain file name")]
    ShardName(String),
    /// A shard that is not there.
    #[error("shard `{0}` is missing")]
    MissingShard(String),
    /// A shard that cannot be read.
    #[error("shard `{shard}` is broken: {reason}")]
    BrokenShard {
        shard: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor that its shard does not hold.
    #[error("tensor `{name}` is not in shard `{shard}`")]
    MissingTensor {
        name: String,
        /// Where the index says it is.
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
