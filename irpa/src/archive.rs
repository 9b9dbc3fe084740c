//! Reads parameter archives. The reader maps an archive into memory and verifies the whole structure of the
//! archive. After the verification, the caller can access the entries of the archive.

use crate::mapped::MappedFile;
use crate::progress::{Tracker, Watch};
use crate::weight_files::refuse_stand_in;
use crate::{ArchiveError, ArchiveRule, Damage};
use byteorder::{ByteOrder, LittleEndian};
use errors::WithPath as _;
use ops::{ElementType, TensorType};
use serde::{Deserialize, Serialize};
use std::{fmt::Display, ops::Range, path::Path, path::PathBuf, sync::Arc};

pub(crate) const MAGIC: [u8; 4] = *b"IRPA";
pub(crate) const HEADER_SIZE: u64 = 88;
/// The size of the fields at the beginning of every archive entry, in bytes.
pub(crate) const COMMON_SIZE: u64 = 60;
pub(crate) const SKIP: u32 = 0;
pub(crate) const SPLAT: u32 = 1;
pub(crate) const SPLAT_SIZE: u64 = 85;
pub(crate) const DATA: u32 = 2;
pub(crate) const DATA_SIZE: u64 = 76;
pub(crate) const ENTRY_ALIGNMENT: u64 = 16;
pub(crate) const DATA_ALIGNMENT: u64 = 64;
pub(crate) const FILE_ALIGNMENT: u64 = 4096;
pub(crate) const PATTERN_SIZES: [usize; 5] = [1, 2, 4, 8, 16];

/// The number of bytes that all threads together hash between two calls of the progress callback.
const PIECE: usize = 16 << 20;

/// A verified, memory-mapped parameter archive. All clones of an [`Archive`] share one memory mapping.
#[derive(Clone, Debug)]
pub struct Archive {
    path: PathBuf,
    map: Arc<MappedFile>,
    entries: Arc<[Entry]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    /// From Tracewright's metadata.
    pub ty: Option<TensorType>,
    /// Hexadecimal, from the metadata.
    pub blake3: Option<String>,
    /// The recipe that computed the data from tensors of the checkpoint, if the metadata contain a recipe.
    pub recipe: Option<String>,
    /// The checkpoint's tensors in the recipe; empty if unknown.
    pub sources: Vec<String>,
    pub data: EntryData,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryData {
    /// Begins at a multiple of 64 in the file.
    Range(Range<usize>),
    /// The bytes of the archive entry repeat a pattern. The file contains the pattern only once.
    Splat {
        /// The repeated pattern, which has 1, 2, 4, 8 or 16 bytes.
        pattern: Vec<u8>,
        /// The size of the entry in bytes, which is a multiple of the pattern's size.
        length: u64,
    },
}

impl Archive {
    /// Maps the archive, and checks every byte outside of the tensors' data, because IREE's reader checks
    /// little: it crashes, for example, if the end of a range overflows.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ArchiveError> {
        let path = path.as_ref();
        let map = MappedFile::open(path)?;
        refuse_stand_in(path, &map)?;
        let entries = verify(path, &map)?.into();
        Ok(Self { path: path.into(), map, entries })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The whole file, mapped until the last clone is dropped. If another process truncates it, the system
    /// kills this process when it reads the missing bytes.
    pub fn bytes(&self) -> Arc<dyn AsRef<[u8]> + Send + Sync> {
        self.map.clone()
    }

    /// Sorted by name.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn get(&self, name: &str) -> Option<&Entry> {
        let index = self.entries.binary_search_by(|entry| entry.name.as_str().cmp(name)).ok()?;
        Some(&self.entries[index])
    }

    /// `None` if there is no such entry, or it repeats a pattern.
    pub fn data(&self, name: &str) -> Option<&[u8]> {
        match &self.get(name)?.data {
            EntryData::Range(range) => self.map.get(range.clone()),
            EntryData::Splat { .. } => None,
        }
    }

    /// Unlike those of [`data`](Self::data), the bytes do not stay in the memory of the process.
    pub fn read_once<R>(&self, name: &str, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, ArchiveError> {
        let Some(EntryData::Range(range)) = self.get(name).map(|entry| &entry.data) else { return Ok(None) };
        Ok(Some(self.map.read_once(range.clone(), read).with_path("map", &self.path)?))
    }

    /// The blake3 hash of all bytes before the tensors' data. They include each tensor's hash, so archives
    /// with different data have different identifiers.
    pub fn table_blake3(&self) -> String {
        // The start of the storage segment. An earlier check guarantees that the start lies inside the file.
        let front = LittleEndian::read_u64(&self.map[72..80]) as usize;
        blake3::hash(&self.map[..front]).to_string()
    }

    /// Compares all tensors' data with the hashes in the metadata, on all threads. The error lists all
    /// damaged entries.
    pub fn verify_content(&self, watch: Option<Watch<'_>>) -> Result<Verified, ArchiveError> {
        let mut verified = Verified::default();
        let mut hashed = Vec::new();
        for entry in self.entries.iter() {
            match (&entry.data, &entry.blake3) {
                (EntryData::Range(range), Some(expected)) => hashed.push((entry, range, expected)),
                _ => verified.without_hash.push(entry.name.clone()),
            }
        }
        verified.entries = hashed.len();
        verified.bytes = hashed.iter().map(|(_, range, _)| range.len() as u64).sum();
        let mut tracker = Tracker::new(&self.path, verified.bytes, watch);
        let mut damaged = Vec::new();
        for (entry, range, expected) in hashed {
            let mut hasher = blake3::Hasher::new();
            for piece in self.map[range.clone()].chunks(PIECE) {
                hasher.update_rayon(piece);
                tracker.advance(piece.len())?;
            }
            let found = hasher.finalize().to_string();
            if found != *expected {
                let (name, expected) = (entry.name.clone(), expected.clone());
                damaged.push(Damage { name, offset: range.start as u64, expected, found });
            }
        }
        if damaged.is_empty() {
            Ok(verified)
        } else {
            Err(ArchiveError::Content { path: self.path.clone(), damaged })
        }
    }
}

/// The result of [`Archive::verify_content`] if all data match the hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    pub entries: usize,
    pub bytes: u64,
    pub without_hash: Vec<String>,
}

impl Entry {
    pub fn length(&self) -> u64 {
        match &self.data {
            EntryData::Range(range) => range.len() as u64,
            EntryData::Splat { length, .. } => *length,
        }
    }
}

/// JSON in the metadata of an entry, which IREE ignores.
#[derive(Serialize, Deserialize)]
pub(crate) struct ArchiveMetadata {
    pub dtype: String,
    pub shape: Vec<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
}

/// `None` on overflow.
pub(crate) fn byte_length(ty: &TensorType) -> Option<u64> {
    let count = ty.shape.iter().try_fold(1u64, |count, &extent| count.checked_mul(extent as u64))?;
    Some(count.checked_mul(ty.element.bits() as u64)?.div_ceil(8))
}

/// Ranges are relative to the file's start, and checked to lie in their segment.
struct Record {
    name: Range<u64>,
    metadata: Range<u64>,
    data: EntryData,
}

/// Never panics, and takes memory at most proportional to the file.
pub(crate) fn verify(path: &Path, bytes: &[u8]) -> Result<Vec<Entry>, ArchiveError> {
    let file = Verifier { path, bytes };
    let (records, claims) = file.table()?;
    // This check guarantees that all names together are not longer than the file.
    file.coverage(claims)?;
    let mut entries: Vec<Entry> = Vec::with_capacity(records.len());
    for record in records {
        let at = record.name.start;
        let entry = file.entry(record)?;
        if let Some(last) = entries.last() {
            let expected = format_args!("a name after `{}`", last.name);
            file.check(
                last.name < entry.name,
                at,
                ArchiveRule::Order,
                expected,
                format_args!("`{}`", entry.name),
            )?;
        }
        entries.push(entry);
    }
    Ok(entries)
}

struct Verifier<'a> {
    path: &'a Path,
    bytes: &'a [u8],
}

impl Verifier<'_> {
    fn fail(
        &self,
        offset: u64,
        rule: ArchiveRule,
        expected: impl Display,
        found: impl Display,
    ) -> ArchiveError {
        ArchiveError::Archive {
            path: self.path.into(),
            offset,
            rule,
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    fn check(
        &self,
        holds: bool,
        offset: u64,
        rule: ArchiveRule,
        expected: impl Display,
        found: impl Display,
    ) -> Result<(), ArchiveError> {
        if holds { Ok(()) } else { Err(self.fail(offset, rule, expected, found)) }
    }

    fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Checked before to lie in the file.
    fn slice(&self, range: Range<u64>) -> &[u8] {
        &self.bytes[range.start as usize..range.end as usize]
    }

    fn u32(&self, at: u64) -> u32 {
        LittleEndian::read_u32(self.slice(at..at + 4))
    }

    fn u64(&self, at: u64) -> u64 {
        LittleEndian::read_u64(self.slice(at..at + 8))
    }

    /// Checks all fields of the header except the offsets and lengths of the segments.
    fn header(&self) -> Result<(), ArchiveError> {
        let length = self.length();
        self.check(length >= HEADER_SIZE, 0, ArchiveRule::FileSize, "at least 88 bytes", length)?;
        let magic = self.slice(0..4);
        self.check(
            magic == MAGIC,
            0,
            ArchiveRule::Magic,
            "`IRPA`",
            format_args!("`{}`", magic.escape_ascii()),
        )?;
        let (minor, major) = ((self.u32(4) >> 16) as u16, self.u32(4) as u16);
        self.check(
            (major, minor) == (0, 0),
            4,
            ArchiveRule::Version,
            "0.0",
            format_args!("{major}.{minor}"),
        )?;
        self.check(self.u64(8) == HEADER_SIZE, 8, ArchiveRule::HeaderSize, HEADER_SIZE, self.u64(8))?;
        self.check(self.u64(16) == 0, 16, ArchiveRule::NextHeader, "none", self.u64(16))?;
        self.check(self.u64(24) == 0, 24, ArchiveRule::Flags, 0, format_args!("{:#x}", self.u64(24)))
    }

    /// The entries, and all ranges that the header, the table and the entries occupy.
    fn table(&self) -> Result<(Vec<Record>, Vec<Range<u64>>), ArchiveError> {
        self.header()?;
        let entries = self.segment(40, HEADER_SIZE, ENTRY_ALIGNMENT)?;
        let metadata = self.segment(56, entries.end, 1)?;
        let storage = self.segment(72, metadata.end, DATA_ALIGNMENT)?;
        let size = storage.end.checked_next_multiple_of(FILE_ALIGNMENT).unwrap_or(u64::MAX);
        self.check(size == self.length(), self.length(), ArchiveRule::FileSize, size, self.length())?;

        let count = self.u64(32);
        let mut records = Vec::new();
        let mut claims = vec![Range { start: 0, end: HEADER_SIZE }];
        let mut end = entries.start;
        let (mut metadata_end, mut storage_end) = (metadata.start, storage.start);
        for index in 0..count {
            let at = end.next_multiple_of(ENTRY_ALIGNMENT);
            let room = entries.end.saturating_sub(at);
            self.check(room >= COMMON_SIZE, 32, ArchiveRule::EntryCount, index, count)?;
            let (size, kind) = (self.u64(at), self.u32(at + 8));
            let expected = match kind {
                SKIP => size.max(COMMON_SIZE),
                SPLAT => SPLAT_SIZE,
                DATA => DATA_SIZE,
                _ => {
                    return Err(self.fail(
                        at + 8,
                        ArchiveRule::EntryType,
                        "0 (skip), 1 (splat) or 2 (data)",
                        kind,
                    ));
                }
            };
            self.check(size == expected, at, ArchiveRule::EntrySize, expected, size)?;
            self.check(size <= room, at, ArchiveRule::EntrySize, format_args!("at most {room}"), size)?;
            end = at + size;
            self.check(
                self.u64(at + 12) == 0,
                at + 12,
                ArchiveRule::Flags,
                0,
                format_args!("{:#x}", self.u64(at + 12)),
            )?;
            let name = self.range(at + 20, &metadata)?;
            let blob = self.range(at + 36, &metadata)?;
            claims.extend([at..end, name.clone(), blob.clone()]);
            metadata_end = metadata_end.max(name.end).max(blob.end);
            let alignment = self.u64(at + 52);
            self.check(
                alignment == 0 || alignment.is_power_of_two(),
                at + 52,
                ArchiveRule::Alignment,
                "0 or a power of two",
                alignment,
            )?;
            let storage = match kind {
                DATA => {
                    let data = self.range(at + 60, &storage)?;
                    let alignment = alignment.max(DATA_ALIGNMENT);
                    self.check(
                        data.start.is_multiple_of(alignment),
                        at + 60,
                        ArchiveRule::Alignment,
                        format_args!("a multiple of {alignment} in the file"),
                        data.start,
                    )?;
                    claims.push(data.clone());
                    storage_end = storage_end.max(data.end);
                    EntryData::Range(data.start as usize..data.end as usize)
                }
                SPLAT => self.splat(at)?,
                _ => continue,
            };
            records.push(Record { name, metadata: blob, data: storage });
        }
        for (used, segment, field, rule) in [
            (end, entries, 48, ArchiveRule::EntryCount),
            (metadata_end, metadata, 64, ArchiveRule::Segment),
            (storage_end, storage, 80, ArchiveRule::Segment),
        ] {
            let expected = format_args!("an end at byte {used}");
            self.check(used == segment.end, field, rule, expected, format_args!("at byte {}", segment.end))?;
        }
        Ok((records, claims))
    }

    /// Reads an offset and a length at `field`. The segment must start at the end of the previous one, and
    /// unless empty at a multiple of `alignment`.
    fn segment(&self, field: u64, before: u64, alignment: u64) -> Result<Range<u64>, ArchiveError> {
        let (offset, length) = (self.u64(field), self.u64(field + 8));
        let start = before.next_multiple_of(alignment);
        match offset.checked_add(length) {
            Some(end) if (offset == start || offset == before && length == 0) && end <= self.length() => {
                Ok(offset..end)
            }
            _ => Err(self.fail(
                field,
                ArchiveRule::Segment,
                format_args!("a range from {start} to at most {}", self.length()),
                format_args!("{length} bytes at {offset}"),
            )),
        }
    }

    /// Reads an offset, relative to `segment`, and a length at `field`.
    fn range(&self, field: u64, segment: &Range<u64>) -> Result<Range<u64>, ArchiveError> {
        let (offset, length) = (self.u64(field), self.u64(field + 8));
        let size = segment.end - segment.start;
        match offset.checked_add(length) {
            Some(end) if end <= size => Ok(segment.start + offset..segment.start + end),
            _ => Err(self.fail(
                field,
                ArchiveRule::Range,
                format_args!("a range inside the segment's {size} bytes"),
                format_args!("{length} bytes at {offset}"),
            )),
        }
    }

    fn splat(&self, at: u64) -> Result<EntryData, ArchiveError> {
        let length = self.u64(at + 60);
        let pattern = self.slice(at + 68..at + 84);
        let size = usize::from(self.slice(at + 84..at + 85)[0]);
        self.check(PATTERN_SIZES.contains(&size), at + 84, ArchiveRule::Splat, "1, 2, 4, 8 or 16", size)?;
        self.check(
            length.is_multiple_of(size as u64),
            at + 60,
            ArchiveRule::Splat,
            format_args!("a multiple of {size}"),
            length,
        )?;
        let (pattern, rest) = pattern.split_at(size);
        self.zero(rest, at + 68 + size as u64)?;
        Ok(EntryData::Splat { pattern: pattern.into(), length })
    }

    /// Checks that the ranges in `claims` do not overlap, and that all bytes between the ranges are zero.
    fn coverage(&self, mut claims: Vec<Range<u64>>) -> Result<(), ArchiveError> {
        claims.retain(|claim| !claim.is_empty());
        claims.sort_unstable_by_key(|claim| claim.start);
        let mut covered = 0;
        for claim in claims {
            let found = format_args!("one from byte {}", claim.start);
            let expected = format_args!("no range before byte {covered}");
            self.check(covered <= claim.start, claim.start, ArchiveRule::Overlap, expected, found)?;
            self.zero(self.slice(covered..claim.start), covered)?;
            covered = claim.end;
        }
        self.zero(self.slice(covered..self.length()), covered)
    }

    fn zero(&self, bytes: &[u8], offset: u64) -> Result<(), ArchiveError> {
        match bytes.iter().position(|&byte| byte != 0) {
            None => Ok(()),
            Some(at) => {
                Err(self.fail(offset + at as u64, ArchiveRule::Gap, 0, format_args!("{:#04x}", bytes[at])))
            }
        }
    }

    fn entry(&self, record: Record) -> Result<Entry, ArchiveError> {
        let at = record.name.start;
        let name = self.slice(record.name);
        self.check(!name.is_empty(), at, ArchiveRule::Name, "at least one byte", "none")?;
        let name = str::from_utf8(name).map_err(|_| {
            self.fail(at, ArchiveRule::Name, "UTF-8", format_args!("`{}`", name.escape_ascii()))
        })?;
        let mut entry = Entry {
            name: name.into(),
            ty: None,
            blake3: None,
            recipe: None,
            sources: Vec::new(),
            data: record.data,
        };
        let at = record.metadata.start;
        // Any tool may store metadata here. Tracewright's metadata are an object with a `dtype`.
        let json = serde_json::from_slice::<serde_json::Value>(self.slice(record.metadata));
        let Some(json) = json.ok().filter(|json| json.get("dtype").is_some()) else { return Ok(entry) };
        let fault = |expected: &str, found: &dyn Display| {
            self.fail(at, ArchiveRule::Metadata, format_args!("{expected} for `{name}`"), found)
        };
        let metadata: ArchiveMetadata =
            serde_json::from_value(json).map_err(|error| fault("dtype, shape and blake3", &error))?;
        let element: ElementType =
            metadata.dtype.parse().map_err(|error| fault("an element type", &error))?;
        let ty = TensorType::new(element, metadata.shape);
        if byte_length(&ty) != Some(entry.length()) {
            return Err(fault(&format!("a type of {} bytes", entry.length()), &ty));
        }
        if let Some(hash) = &metadata.blake3
            && (hash.len() != 64 || !hash.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f')))
        {
            return Err(fault("a blake3 of 64 hexadecimal digits", hash));
        }
        entry.ty = Some(ty);
        entry.blake3 = metadata.blake3;
        entry.recipe = metadata.recipe;
        entry.sources = metadata.sources;
        Ok(entry)
    }
}
