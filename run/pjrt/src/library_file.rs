//! Checks that a library file is complete before the operating system maps the file into memory.
//! The operating system does not check whether a library file is truncated. If a process accesses
//! the missing end of a truncated library, the operating system kills the process.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// Bytes of a 64-bit ELF header.
const HEADER: usize = 64;

/// The size of a program header in a 64-bit ELF file, in bytes.
const PROGRAM_HEADER: usize = 56;

/// The number of the segment type that the operating system maps into memory (`PT_LOAD`).
const LOADED: u32 = 1;

/// The size that an ELF library's segments require, and its actual size, if it is truncated. `None` for other
/// files.
pub fn missing_end(path: &Path) -> io::Result<Option<(u64, u64)>> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut header = [0; HEADER];
    if size < HEADER as u64 {
        return Ok(None);
    }
    file.read_exact(&mut header)?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return Ok(None);
    }
    let table = u64_at(&header, 32);
    let (entry, count) = (u16_at(&header, 54), u16_at(&header, 56));
    if usize::from(entry) != PROGRAM_HEADER {
        return Ok(None);
    }
    let end = table.saturating_add(u64::from(count) * PROGRAM_HEADER as u64);
    if end > size {
        return Ok(Some((end, size)));
    }
    file.seek(SeekFrom::Start(table))?;
    let mut segments = vec![0; usize::from(count) * PROGRAM_HEADER];
    file.read_exact(&mut segments)?;
    let ends = segments.chunks_exact(PROGRAM_HEADER).filter(|segment| u32_at(segment, 0) == LOADED);
    let ends = ends.map(|segment| u64_at(segment, 8).saturating_add(u64_at(segment, 32)));
    Ok(ends.max().filter(|&end| end > size).map(|end| (end, size)))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
