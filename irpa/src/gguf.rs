//! Reads GGUF files, which contain metadata, a table of tensors, and the data of the tensors.
//!
//! The file `docs/gguf.md` in the ggml repository describes the format. The reader supports versions 2 and 3
//! of the GGUF format, with little-endian numbers. The reader checks all counts and offsets in the file
//! before it uses these numbers. If keys or tensors of a file are invalid, one error lists all problems.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use files::{BrokenLink, limits};
pub use ops::format::BlockFormat;
use safetensors::Dtype;

use crate::ArchiveError;
use crate::counts::{GGUF_PARSES, count};
use crate::error::GgufProblem;
use crate::joined::Joined;
use crate::mapped::MappedFile;
use crate::weight_files::refuse_stand_in;

const MAGIC: &[u8; 4] = b"GGUF";

/// The alignment of tensor data in a GGUF file that sets no alignment, in bytes.
const ALIGNMENT: u64 = 32;

/// The largest number of axes of a tensor (`GGML_MAX_DIMS`).
const RANK: u32 = 4;

/// A memory-mapped GGUF file, or all files of a model that is split.
///
/// ```no_run
/// use tracewright_irpa::{ArchiveError, Gguf};
///
/// let file = Gguf::open("model.gguf")?;
/// println!("{:?}: {} tensors", file.text("general.architecture"), file.tensors().len());
/// # Ok::<(), ArchiveError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Gguf {
    /// The keys are in the first.
    files: Vec<(PathBuf, Arc<MappedFile>)>,
    keys: BTreeMap<String, ValuePlace>,
    tensors: Vec<GgufTensor>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufTensor {
    pub name: String,
    pub numbers: StoredNumbers,
    /// The outermost axis first, as GGUF does not, without leading ones.
    pub shape: Vec<usize>,
    /// The place of its file among those of the model, and that of its data in this file.
    pub file: usize,
    pub range: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredNumbers {
    Each(Dtype),
    /// Each with its own scales.
    Blocks(BlockFormat),
    /// A matrix with this many values per row. Each row begins a block, and zeros fill its last one.
    Rows(BlockFormat, usize),
    /// Four-bit floats, two per byte; another tensor has the scales.
    Mxfp4,
    /// Described by several tensors of a quantized Hugging Face folder.
    Joined(Joined),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GgufValue<'a> {
    Integer(i128),
    Float(f64),
    Bool(bool),
    Text(&'a str),
    Array(GgufArray<'a>),
}

impl fmt::Display for GgufValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(integer) => integer.fmt(f),
            Self::Float(float) => float.fmt(f),
            Self::Bool(bool) => bool.fmt(f),
            Self::Text(text) => write!(f, "\"{text}\""),
            Self::Array(array) => write!(f, "an array of {}", array.len()),
        }
    }
}

/// All elements have the same type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GgufArray<'a> {
    kind: Kind,
    count: usize,
    bytes: &'a [u8],
}

#[derive(Clone, Debug)]
enum ValuePlace {
    One(Kind, Range<usize>),
    Array(Kind, usize, Range<usize>),
}

/// `gguf_metadata_value_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    U64,
    I64,
    F64,
}

const ARRAY: u32 = 9;

impl Kind {
    fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::Text,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// `None` for strings.
    fn bytes(self) -> Option<usize> {
        Some(match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
            Self::Text => return None,
        })
    }

    /// For a string, `bytes` is the text without its length.
    fn value(self, bytes: &[u8]) -> GgufValue<'_> {
        let mut word = [0; 8];
        bytes.iter().zip(&mut word).for_each(|(byte, place)| *place = *byte);
        let [a, b, c, d, ..] = word;
        match self {
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => {
                GgufValue::Integer(u64::from_le_bytes(word).into())
            }
            Self::I8 => GgufValue::Integer((a as i8).into()),
            Self::I16 => GgufValue::Integer(i16::from_le_bytes([a, b]).into()),
            Self::I32 => GgufValue::Integer(i32::from_le_bytes([a, b, c, d]).into()),
            Self::I64 => GgufValue::Integer(i64::from_le_bytes(word).into()),
            Self::F32 => GgufValue::Float(f32::from_le_bytes([a, b, c, d]).into()),
            Self::F64 => GgufValue::Float(f64::from_le_bytes(word)),
            Self::Bool => GgufValue::Bool(a != 0),
            // The parser already checked that the text is UTF-8.
            Self::Text => GgufValue::Text(str::from_utf8(bytes).unwrap_or_default()),
        }
    }
}

impl Gguf {
    /// By name or first bytes; also true for a broken link of that name.
    pub fn is_at(path: &Path) -> bool {
        let begins = || {
            let mut magic = [0; 4];
            let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
            read.is_ok() && magic == *MAGIC
        };
        let is_named = path.extension().is_some_and(|end| end == "gguf");
        // A configuration is opened only to be read.
        let is_json = path.extension().is_some_and(|end| end == "json");
        (path.is_file() && (is_named || !is_json && begins())) || (is_named && BrokenLink::at(path).is_some())
    }

    /// A file by itself, which may be a part of a model.
    pub(crate) fn open_part(path: &Path) -> Result<Self, ArchiveError> {
        let map = MappedFile::open(path)?;
        refuse_stand_in(path, &map)?;
        let refuse = |problems| ArchiveError::Gguf { path: path.into(), problems };
        let mut reader = Reader::new(&map);
        let read = reader.read();
        let Reader { mut problems, .. } = reader;
        match read {
            Ok((keys, tensors)) if problems.is_empty() => {
                Ok(Self { files: vec![(path.into(), map)], keys, tensors })
            }
            Ok(_) => Err(refuse(problems)),
            Err(problem) => {
                problems.push(problem);
                Err(refuse(problems))
            }
        }
    }

    /// The keys of a file by itself; no tensors.
    pub(crate) fn open_part_keys(path: &Path) -> Result<Self, ArchiveError> {
        let map = MappedFile::open(path)?;
        refuse_stand_in(path, &map)?;
        let mut reader = Reader::new(&map);
        match reader.head() {
            Ok((_, keys)) => Ok(Self { files: vec![(path.into(), map)], keys, tensors: Vec::new() }),
            Err(problem) => Err(ArchiveError::Gguf { path: path.into(), problems: vec![problem] }),
        }
    }

    /// The path of the file with the keys.
    pub fn path(&self) -> &Path {
        &self.files[0].0
    }

    /// Adds the tensors of another part.
    pub(crate) fn add(&mut self, part: Self) {
        let first = self.files.len();
        self.files.extend(part.files);
        self.tensors.extend(
            part.tensors.into_iter().map(|tensor| GgufTensor { file: first + tensor.file, ..tensor }),
        );
    }

    pub fn get(&self, key: &str) -> Option<GgufValue<'_>> {
        Some(match self.keys.get(key)? {
            ValuePlace::One(kind, range) => kind.value(&self.files[0].1[range.clone()]),
            ValuePlace::Array(kind, count, range) => GgufValue::Array(GgufArray {
                kind: *kind,
                count: *count,
                bytes: &self.files[0].1[range.clone()],
            }),
        })
    }

    /// `None` if missing or not a string.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            GgufValue::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str)
    }

    pub fn tensors(&self) -> &[GgufTensor] {
        &self.tensors
    }

    pub fn tensor(&self, name: &str) -> Option<&GgufTensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    pub fn data(&self, tensor: &GgufTensor) -> &[u8] {
        &self.files[tensor.file].1[tensor.range.clone()]
    }

    pub(crate) fn files(&self) -> &[(PathBuf, Arc<MappedFile>)] {
        &self.files
    }
}

impl<'a> GgufArray<'a> {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn iter(self) -> impl Iterator<Item = GgufValue<'a>> {
        let mut rest = self.bytes;
        (0..self.count).map(move |_| {
            let length = self.kind.bytes().unwrap_or_else(|| {
                let (length, after) = rest.split_first_chunk().unwrap_or((&[0; 8], &[]));
                rest = after;
                u64::from_le_bytes(*length) as usize
            });
            let (value, after) = rest.split_at_checked(length).unwrap_or_default();
            rest = after;
            self.kind.value(value)
        })
    }

    /// `None` if the elements are not strings.
    pub fn texts(self) -> Option<impl Iterator<Item = &'a str>> {
        let text = |value| match value {
            GgufValue::Text(text) => text,
            _ => "",
        };
        (self.kind == Kind::Text).then(|| self.iter().map(text))
    }

    pub fn integers(self) -> Option<impl Iterator<Item = i128>> {
        let integer = |value| match value {
            GgufValue::Integer(integer) => integer,
            _ => 0,
        };
        let others = [Kind::F32, Kind::F64, Kind::Bool, Kind::Text];
        (!others.contains(&self.kind)).then(|| self.iter().map(integer))
    }

    pub fn floats(self) -> Option<impl Iterator<Item = f64>> {
        let float = |value| match value {
            GgufValue::Float(float) => float,
            _ => f64::NAN,
        };
        [Kind::F32, Kind::F64].contains(&self.kind).then(|| self.iter().map(float))
    }
}

/// A cursor that reads a file from start to end.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The problems that the reader has found so far, and that do not prevent further reading.
    problems: Vec<GgufProblem>,
}

type Table = (BTreeMap<String, ValuePlace>, Vec<GgufTensor>);

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        count(&GGUF_PARSES);
        Self { bytes, at: 0, problems: Vec::new() }
    }

    fn read(&mut self) -> Result<Table, GgufProblem> {
        let (tensors, keys) = self.head()?;
        let alignment = self.alignment(&keys);
        let mut infos = Vec::with_capacity(tensors.min(self.bytes.len() / 32));
        for _ in 0..tensors {
            infos.push(self.info()?);
        }
        let start = (self.at as u64).next_multiple_of(alignment);
        Ok((keys, self.tensors(infos, start, alignment)))
    }

    fn head(&mut self) -> Result<(usize, BTreeMap<String, ValuePlace>), GgufProblem> {
        if self.take(4, "the magic")? != MAGIC {
            return Err(GgufProblem::Magic);
        }
        match self.u32("the version")? {
            2 | 3 => {}
            found if [2, 3].contains(&found.swap_bytes()) => return Err(GgufProblem::BigEndian),
            found => return Err(GgufProblem::Version { found }),
        }
        let tensors = self.count("tensors", limits::GGUF_TENSORS)?;
        let keys = self.count("keys", limits::GGUF_KEYS)?;
        Ok((tensors, self.keys(keys)?))
    }

    fn take(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], GgufProblem> {
        let (at, size) = (self.at as u64, self.bytes.len() as u64);
        let taken = self.bytes.get(self.at..).and_then(|rest| rest.get(..count));
        let taken = taken.ok_or(GgufProblem::CutOff { what, at, needed: count as u64, size })?;
        self.at += count;
        Ok(taken)
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, GgufProblem> {
        Ok(u32::from_le_bytes(self.take(4, what)?.try_into().unwrap_or_default()))
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, GgufProblem> {
        Ok(u64::from_le_bytes(self.take(8, what)?.try_into().unwrap_or_default()))
    }

    fn count(&mut self, what: &'static str, most: usize) -> Result<usize, GgufProblem> {
        let found = self.u64(what)?;
        if found > most as u64 { Err(GgufProblem::Count { what, found, most }) } else { Ok(found as usize) }
    }

    fn text(&mut self, what: &'static str) -> Result<Range<usize>, GgufProblem> {
        let length = usize::try_from(self.u64(what)?).unwrap_or(usize::MAX);
        let start = self.at;
        match str::from_utf8(self.take(length, what)?) {
            Ok(_) => Ok(start..self.at),
            Err(_) => Err(GgufProblem::Text { what, at: start as u64 }),
        }
    }

    fn name(&mut self, what: &'static str) -> Result<String, GgufProblem> {
        let place = self.text(what)?;
        Ok(str::from_utf8(&self.bytes[place]).unwrap_or_default().to_owned())
    }

    fn keys(&mut self, count: usize) -> Result<BTreeMap<String, ValuePlace>, GgufProblem> {
        let mut keys = BTreeMap::new();
        for _ in 0..count {
            let key = self.name("a key")?;
            let value = self.stored(&key)?;
            if keys.insert(key.clone(), value).is_some() {
                self.problems.push(GgufProblem::KeyTwice { key });
            }
        }
        Ok(keys)
    }

    fn stored(&mut self, key: &str) -> Result<ValuePlace, GgufProblem> {
        let unknown = |found| GgufProblem::ValueType { key: key.to_owned(), found };
        let number = self.u32("the type of a value")?;
        if number != ARRAY {
            let kind = Kind::of(number).ok_or_else(|| unknown(number))?;
            return Ok(ValuePlace::One(kind, self.value(kind)?));
        }
        let number = self.u32("the type of an array")?;
        let kind = Kind::of(number).ok_or_else(|| unknown(number))?;
        let count = usize::try_from(self.u64("the length of an array")?).unwrap_or(usize::MAX);
        let start = self.at;
        match kind.bytes() {
            Some(bytes) => drop(self.take(count.saturating_mul(bytes), "an array")?),
            None => {
                for _ in 0..count {
                    self.text("a text of an array")?;
                }
            }
        }
        Ok(ValuePlace::Array(kind, count, start..self.at))
    }

    fn value(&mut self, kind: Kind) -> Result<Range<usize>, GgufProblem> {
        let Some(bytes) = kind.bytes() else { return self.text("a text") };
        let start = self.at;
        self.take(bytes, "a value")?;
        Ok(start..self.at)
    }

    fn integer(&self, keys: &BTreeMap<String, ValuePlace>, key: &str) -> Option<i128> {
        match keys.get(key)? {
            ValuePlace::One(kind, range) => match kind.value(&self.bytes[range.clone()]) {
                GgufValue::Integer(integer) => Some(integer),
                _ => Some(-1),
            },
            ValuePlace::Array(..) => Some(-1),
        }
    }

    fn alignment(&mut self, keys: &BTreeMap<String, ValuePlace>) -> u64 {
        let Some(found) = self.integer(keys, "general.alignment") else { return ALIGNMENT };
        match u64::try_from(found) {
            // The specification requires a multiple of 8. Files do not align tensors to much more than a page.
            Ok(found) if found.is_power_of_two() && (8..=1 << 20).contains(&found) => found,
            _ => {
                self.problems.push(GgufProblem::Alignment { found });
                ALIGNMENT
            }
        }
    }

    fn info(&mut self) -> Result<Info, GgufProblem> {
        let name = self.name("the name of a tensor")?;
        let rank = self.u32("the rank of a tensor")?;
        if rank > RANK {
            return Err(GgufProblem::Rank { name, found: rank, most: RANK });
        }
        let mut shape = Vec::with_capacity(rank as usize);
        for _ in 0..rank {
            shape.push(self.u64("the shape of a tensor")?);
        }
        shape.reverse();
        let (ty, offset) = (self.u32("the type of a tensor")?, self.u64("the place of a tensor")?);
        Ok(Info { name, shape, ty, offset })
    }

    fn tensors(&mut self, infos: Vec<Info>, start: u64, alignment: u64) -> Vec<GgufTensor> {
        let size = self.bytes.len() as u64;
        let mut names = std::collections::BTreeSet::new();
        let mut tensors = Vec::with_capacity(infos.len());
        for info in infos {
            if !names.insert(info.name.clone()) {
                self.problems.push(GgufProblem::TensorTwice { name: info.name });
                continue;
            }
            match info.tensor(start, alignment, size) {
                Ok(tensor) => tensors.push(tensor),
                Err(problem) => self.problems.push(problem),
            }
        }
        self.problems.extend(overlaps(&tensors));
        tensors
    }
}

/// Finds the tensors whose data begin before the data of the previous tensor end.
fn overlaps(tensors: &[GgufTensor]) -> Vec<GgufProblem> {
    let mut sorted: Vec<&GgufTensor> = tensors.iter().collect();
    sorted.sort_by_key(|tensor| tensor.range.start);
    let mut problems = Vec::new();
    let Some(mut last) = sorted.first().copied() else { return problems };
    for tensor in &sorted[1..] {
        if tensor.range.start < last.range.end {
            let (first, second, at) = (last.name.clone(), tensor.name.clone(), tensor.range.start as u64);
            problems.push(GgufProblem::Overlap { first, second, at });
        }
        if tensor.range.end > last.range.end {
            last = tensor;
        }
    }
    problems
}

struct Info {
    name: String,
    shape: Vec<u64>,
    ty: u32,
    offset: u64,
}

impl Info {
    fn tensor(self, start: u64, alignment: u64, size: u64) -> Result<GgufTensor, GgufProblem> {
        let Self { name, shape, ty, offset } = self;
        let Some(numbers) = StoredNumbers::of(ty) else {
            return Err(GgufProblem::TensorType { name, found: ty });
        };
        let (together, bytes) = numbers.block();
        let count = shape.iter().try_fold(1u64, |count, &extent| count.checked_mul(extent));
        let row = shape.last().copied().unwrap_or(1);
        let Some(count) = count.filter(|&count| count > 0 && row % together == 0) else {
            return Err(GgufProblem::Shape { name, shape, together });
        };
        let place = || {
            let length = (count / together).checked_mul(bytes)?;
            let first = start.checked_add(offset)?;
            Some((first, first.checked_add(length)?))
        };
        if offset % alignment != 0 {
            return Err(GgufProblem::Offset { name, offset, alignment });
        }
        match place() {
            Some((first, end)) if end <= size => {
                // llama.cpp does not distinguish tensors by extents of 1 on outer axes.
                let ones = shape.iter().take(shape.len().saturating_sub(1)).take_while(|&&n| n == 1).count();
                let shape = shape[ones..].iter().map(|&extent| extent as usize).collect();
                Ok(GgufTensor { name, numbers, shape, file: 0, range: first as usize..end as usize })
            }
            place => Err(GgufProblem::Beyond { name, end: place.map(|(_, end)| end), size }),
        }
    }
}

impl StoredNumbers {
    /// Returns the storage format that has the given number in ggml's list of types.
    fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Each(Dtype::F32),
            1 => Self::Each(Dtype::F16),
            30 => Self::Each(Dtype::BF16),
            _ => Self::Blocks(BlockFormat::of(number)?),
        })
    }

    /// Values and bytes.
    fn block(self) -> (u64, u64) {
        match self {
            Self::Each(Dtype::F32) => (1, 4),
            Self::Each(_) => (1, 2),
            Self::Blocks(format) | Self::Rows(format, _) => (format.numbers() as u64, format.bytes() as u64),
            // Without the scales, which are in another tensor. No GGUF file uses these storages.
            Self::Mxfp4 | Self::Joined(_) => (2, 1),
        }
    }
}
