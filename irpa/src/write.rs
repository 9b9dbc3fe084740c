//! Writes parameter archives. The writer plans the layout of an archive from the names and types of
//! the entries. The writer then streams the data of the entries to the file.

use crate::archive::{
    ArchiveMetadata, COMMON_SIZE, DATA, DATA_ALIGNMENT, DATA_SIZE, ENTRY_ALIGNMENT, FILE_ALIGNMENT,
    HEADER_SIZE, MAGIC, PATTERN_SIZES, SPLAT, SPLAT_SIZE, byte_length,
};
use crate::convert::is_finite;
use crate::progress::{CHUNK, Tracker, Watch};
use crate::{ArchiveError, Checkpoint, EntryProblem, convert};
use byteorder::{ByteOrder, LittleEndian};
use errors::FileError;
use files::{FileKind, NewFile};
use ops::{ElementType, TensorType};
use std::{
    fs::File,
    io::{self, ErrorKind, Seek, SeekFrom, Write},
    path::Path,
    sync::mpsc,
    thread,
};

const FLUSHED: usize = 64 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEntry {
    name: String,
    content: Content,
    recipe: Option<String>,
    sources: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Tensor(TensorType),
    Raw(u64),
    Splat(TensorType, Vec<u8>),
}

impl NewEntry {
    /// The caller of [`write()`] provides the data.
    pub fn tensor(name: impl Into<String>, ty: TensorType) -> Self {
        Self::new(name, Content::Tensor(ty))
    }

    /// Unknown type, without metadata.
    pub fn raw(name: impl Into<String>, length: u64) -> Self {
        Self::new(name, Content::Raw(length))
    }

    /// Repeats a pattern of 1, 2, 4, 8 or 16 bytes, which is stored once.
    pub fn splat(name: impl Into<String>, ty: TensorType, pattern: &[u8]) -> Self {
        Self::new(name, Content::Splat(ty, pattern.into()))
    }

    fn new(name: impl Into<String>, content: Content) -> Self {
        Self { name: name.into(), content, recipe: None, sources: Vec::new() }
    }

    /// Computed from the checkpoint's tensors in `sources`.
    pub fn with_recipe(mut self, recipe: impl Into<String>, sources: Vec<String>) -> Self {
        self.recipe = Some(recipe.into());
        self.sources = sources;
        self
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn ty(&self) -> Option<&TensorType> {
        match &self.content {
            Content::Tensor(ty) | Content::Splat(ty, _) => Some(ty),
            Content::Raw(_) => None,
        }
    }

    /// Returns the size of the entry's data in bytes. The function also checks that the entry is valid.
    fn length(&self) -> Result<u64, EntryProblem> {
        let length = match &self.content {
            Content::Raw(length) => *length,
            Content::Tensor(ty) | Content::Splat(ty, _) => {
                byte_length(ty).ok_or_else(|| EntryProblem::TooLarge(Some(ty.clone())))?
            }
        };
        match &self.content {
            Content::Splat(_, pattern)
                if !PATTERN_SIZES.contains(&pattern.len())
                    || !length.is_multiple_of(pattern.len() as u64) =>
            {
                Err(EntryProblem::Splat { pattern: pattern.len(), length })
            }
            _ => Ok(length),
        }
    }

    /// With zeros for the hash, which is known only after all data.
    fn metadata(&self) -> Option<String> {
        let (ty, hashed) = match &self.content {
            Content::Tensor(ty) => (ty, true),
            Content::Splat(ty, _) => (ty, false),
            Content::Raw(_) => return None,
        };
        let metadata = ArchiveMetadata {
            dtype: ty.element.name().into(),
            shape: ty.shape.clone(),
            blake3: hashed.then(|| "0".repeat(64)),
            recipe: self.recipe.clone(),
            sources: self.sources.clone(),
        };
        // Strings and integers always serialise.
        serde_json::to_string(&metadata).ok()
    }
}

pub struct WriteOptions<'a> {
    /// The type and the hash of each tensor, which Tracewright needs, but IREE does not.
    pub metadata: bool,
    /// The callback that receives the progress of the writer. The callback can stop the writer.
    pub watch: Option<Watch<'a>>,
}

impl Default for WriteOptions<'_> {
    fn default() -> Self {
        Self { metadata: true, watch: None }
    }
}

/// The kind of file that a new archive may replace. A new archive may replace only another archive.
pub const ARCHIVE: FileKind = FileKind { name: "a parameter archive", is: |head| head.starts_with(b"IRPA") };

/// Writes an archive sorted by name. `source` gets each entry with data in that order, and must write exactly
/// its type's bytes to the [`Sink`]. The archive appears at `path` only when all data are on disk, replaces
/// only an archive or an empty file, and leaves nothing after an error. Memory does not depend on the size.
pub fn write<E: From<ArchiveError>>(
    path: impl AsRef<Path>,
    entries: Vec<NewEntry>,
    options: WriteOptions<'_>,
    source: impl FnMut(&NewEntry, &mut Sink<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let path = path.as_ref();
    let layout = ArchivePlan::new(entries, options.metadata)?;
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let destination = Destination { path, folder, size: layout.file_size };
    if let Some(available) = destination.available().filter(|&available| available < destination.size) {
        return Err(destination.full(Some(available)).into());
    }
    let refused = |FileError { action, source, .. }| destination.error(action, source);
    let file = NewFile::begin(path, ARCHIVE).map_err(refused)?;
    flushing(file.file(), &destination, |out| layout.stream(&destination, out, options.watch, source))?;
    file.publish().map_err(refused)?;
    Ok(())
}

/// Flushes while the next data are computed, so that the last flush has less to write.
fn flushing<E: From<ArchiveError>>(
    file: &File,
    destination: &Destination<'_>,
    stream: impl FnOnce(&mut Flushing<'_>) -> Result<(), E>,
) -> Result<(), E> {
    thread::scope(|scope| {
        let (ask, asked) = mpsc::sync_channel(1);
        // The loop ends at the first failed flush, because the system reports a failure only once.
        let flusher = scope.spawn(move || asked.into_iter().try_for_each(|()| file.sync_data()));
        let streamed = stream(&mut Flushing { file, ask, written: 0 });
        let flushed = flusher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        streamed?;
        Ok(flushed.map_err(|error| destination.error("flush", error))?)
    })
}

/// A file that a second thread flushes repeatedly while the writer appends data.
struct Flushing<'a> {
    file: &'a File,
    ask: mpsc::SyncSender<()>,
    written: usize,
}

impl Write for Flushing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.written += count;
        // If one flush is running and another is waiting, a third flush is not requested.
        if self.written >= FLUSHED && self.ask.try_send(()).is_ok() {
            self.written = 0;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for Flushing<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// The path of the new archive, which error messages contain.
pub(crate) struct Destination<'a> {
    pub path: &'a Path,
    pub folder: &'a Path,
    pub size: u64,
}

impl Destination<'_> {
    fn available(&self) -> Option<u64> {
        fs4::available_space(self.folder).ok()
    }

    fn full(&self, available: Option<u64>) -> ArchiveError {
        ArchiveError::DiskFull { path: self.path.into(), needed: self.size, available }
    }

    fn error(&self, action: &'static str, error: io::Error) -> ArchiveError {
        match error.kind() {
            ErrorKind::StorageFull => self.full(self.available()),
            // The file system may still have free space that this user may not use.
            ErrorKind::QuotaExceeded => self.full(None),
            _ => FileError { action, path: self.path.into(), source: error }.into(),
        }
    }
}

/// The layout of an archive, which is known before the data are written.
pub(crate) struct ArchivePlan {
    front: Vec<u8>,
    entries: Vec<Placed>,
    data_size: u64,
    pub file_size: u64,
}

struct Placed {
    entry: NewEntry,
    /// Offset and length; `None` for a repeated pattern.
    data: Option<(u64, u64)>,
    /// `None` without metadata.
    hash: Option<usize>,
}

impl ArchivePlan {
    pub fn new(mut entries: Vec<NewEntry>, metadata: bool) -> Result<Self, ArchiveError> {
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(entry) = entries.first().filter(|entry| entry.name.is_empty()) {
            return Err(ArchiveError::entry(&entry.name, EntryProblem::Unnamed));
        }
        if let Some(pair) = entries.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(ArchiveError::entry(&pair[0].name, EntryProblem::Duplicate));
        }

        let mut table: Vec<u8> = Vec::new();
        let mut blobs: Vec<u8> = Vec::new();
        let mut storage_size = 0u64;
        let mut data_size = 0u64;
        let mut placed = Vec::with_capacity(entries.len());
        for entry in entries {
            let fault = |problem| ArchiveError::entry(&entry.name, problem);
            let length = entry.length().map_err(fault)?;
            let name = (blobs.len() as u64, entry.name.len() as u64);
            blobs.extend_from_slice(entry.name.as_bytes());
            let blob = if metadata { entry.metadata() } else { None }.unwrap_or_default();
            let start = if blob.is_empty() { 0 } else { blobs.len() };
            // No text from the caller comes before the hash in the metadata.
            const HASH: &str = "\"blake3\":\"";
            let hash = blob.find(HASH).map(|at| start + at + HASH.len());
            blobs.extend_from_slice(blob.as_bytes());

            let at = table.len().next_multiple_of(ENTRY_ALIGNMENT as usize);
            let (kind, size, alignment) = match entry.content {
                Content::Splat(..) => (SPLAT, SPLAT_SIZE, 0),
                Content::Tensor(_) | Content::Raw(_) => (DATA, DATA_SIZE, DATA_ALIGNMENT),
            };
            table.resize(at + size as usize, 0);
            let record = &mut table[at..];
            LittleEndian::write_u64(&mut record[0..], size);
            LittleEndian::write_u32(&mut record[8..], kind);
            LittleEndian::write_u64_into(
                &[name.0, name.1, start as u64, blob.len() as u64, alignment],
                &mut record[20..60],
            );
            let body = &mut record[COMMON_SIZE as usize..];
            let data = if let Content::Splat(_, pattern) = &entry.content {
                LittleEndian::write_u64(body, length);
                body[8..8 + pattern.len()].copy_from_slice(pattern);
                body[24] = pattern.len() as u8;
                None
            } else {
                // A file's size fits into an i64, so the following sums cannot overflow.
                let offset = storage_size.next_multiple_of(DATA_ALIGNMENT);
                let end = offset.checked_add(length).filter(|&end| end < i64::MAX as u64 / 2);
                storage_size = end.ok_or_else(|| fault(EntryProblem::TooLarge(None)))?;
                data_size += length;
                LittleEndian::write_u64_into(&[offset, length], &mut body[..16]);
                Some((offset, length))
            };
            placed.push(Placed { entry, data, hash });
        }

        let entries_start = HEADER_SIZE.next_multiple_of(ENTRY_ALIGNMENT);
        let metadata_start = entries_start + table.len() as u64;
        let metadata_end = metadata_start + blobs.len() as u64;
        // In IREE, the alignment of the first stored entry aligns the storage segment.
        let stored = placed.iter().any(|placed| placed.data.is_some());
        let storage_start = metadata_end.next_multiple_of(if stored { DATA_ALIGNMENT } else { 1 });
        let mut front = vec![0; entries_start as usize];
        front[..4].copy_from_slice(&MAGIC);
        LittleEndian::write_u64(&mut front[8..], HEADER_SIZE);
        LittleEndian::write_u64_into(
            &[
                placed.len() as u64,
                entries_start,
                table.len() as u64,
                metadata_start,
                blobs.len() as u64,
                storage_start,
                storage_size,
            ],
            &mut front[32..HEADER_SIZE as usize],
        );
        front.append(&mut table);
        front.append(&mut blobs);
        for placed in &mut placed {
            placed.data = placed.data.map(|(offset, length)| (storage_start + offset, length));
            placed.hash = placed.hash.map(|at| metadata_start as usize + at);
        }
        let file_size = (storage_start + storage_size).next_multiple_of(FILE_ALIGNMENT);
        Ok(Self { front, entries: placed, data_size, file_size })
    }

    /// Data first, then the header, so that an unfinished archive does not begin with the magic bytes.
    pub fn stream<E: From<ArchiveError>>(
        mut self,
        destination: &Destination<'_>,
        out: &mut (impl Write + Seek),
        watch: Option<Watch<'_>>,
        mut source: impl FnMut(&NewEntry, &mut Sink<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let failed = |error| destination.error("write", error);
        let mut position = self.front.len() as u64;
        out.seek(SeekFrom::Start(position)).map_err(failed)?;
        let mut tracker = Tracker::new(destination.path, self.data_size, watch);
        for placed in &self.entries {
            let Some((offset, length)) = placed.data else { continue };
            pad(out, offset - position).map_err(failed)?;
            let mut sink = Sink {
                out,
                destination,
                advance: &mut |bytes| tracker.advance(bytes),
                entry: &placed.entry,
                hasher: placed.hash.map(|_| blake3::Hasher::new()),
                length,
                written: 0,
            };
            source(&placed.entry, &mut sink)?;
            if sink.written != length {
                return Err(sink.wrong_length(sink.written))?;
            }
            if let (Some(at), Some(hasher)) = (placed.hash, sink.hasher) {
                self.front[at..at + 64].copy_from_slice(hasher.finalize().to_hex().as_bytes());
            }
            position = offset + length;
        }
        pad(out, self.file_size - position).map_err(failed)?;
        out.seek(SeekFrom::Start(0)).map_err(failed)?;
        out.write_all(&self.front).map_err(failed)?;
        Ok(out.flush().map_err(failed)?)
    }
}

/// Fewer zeros than a memory page has bytes.
fn pad(out: &mut impl Write, count: u64) -> io::Result<()> {
    const ZEROS: [u8; FILE_ALIGNMENT as usize] = [0; FILE_ALIGNMENT as usize];
    out.write_all(&ZEROS[..count as usize])
}

/// Receives the data of one entry in the order of the bytes.
pub struct Sink<'a> {
    out: &'a mut dyn Write,
    destination: &'a Destination<'a>,
    advance: &'a mut dyn FnMut(usize) -> Result<(), ArchiveError>,
    entry: &'a NewEntry,
    hasher: Option<blake3::Hasher>,
    length: u64,
    written: u64,
}

impl Sink<'_> {
    /// Appends the next bytes of the entry to the archive. You can pass any number of bytes in one call.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), ArchiveError> {
        let end = self.written + bytes.len() as u64;
        if end > self.length {
            return Err(self.wrong_length(end));
        }
        self.written = end;
        for chunk in bytes.chunks(CHUNK) {
            if let Some(hasher) = &mut self.hasher {
                hasher.update(chunk);
            }
            self.out.write_all(chunk).map_err(|error| self.destination.error("write", error))?;
            (self.advance)(chunk.len())?;
        }
        Ok(())
    }

    /// In pieces of bounded size.
    pub fn write_converted(
        &mut self,
        checkpoint: &Checkpoint,
        name: &str,
        to: ElementType,
    ) -> Result<(), ArchiveError> {
        let (bytes, from) = (checkpoint.data(name)?, checkpoint.ty(name)?.element);
        if from == to {
            return self.write(bytes);
        }
        let count = CHUNK / 4;
        let mut buffer = vec![0; to.bytes(count)];
        for chunk in bytes.chunks(from.bytes(count)) {
            let size = to.bytes(chunk.len() * 8 / from.bits());
            convert(chunk, from, to, &mut buffer[..size])?;
            if !is_finite(&buffer[..size], to) {
                return Err(checkpoint.not_finite(name, to));
            }
            self.write(&buffer[..size])?;
        }
        Ok(())
    }

    fn wrong_length(&self, found: u64) -> ArchiveError {
        ArchiveError::SourceLength { name: self.entry.name.clone(), expected: self.length, found }
    }
}
