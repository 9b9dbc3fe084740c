//! Memory-mapped files. This module contains the only `unsafe` line of the crate.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use errors::WithPath as _;
use memmap2::{Mmap, MmapOptions};

use crate::ArchiveError;

/// The smallest size in bytes of a range that [`MappedFile::read_once`] maps separately.
const LARGE: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct MappedFile {
    file: File,
    map: Mmap,
}

impl MappedFile {
    pub fn open(path: &Path) -> Result<Arc<Self>, ArchiveError> {
        let file = files::regular(path).and_then(|()| File::open(path)).with_path("open", path)?;
        let map = map(&file, &MmapOptions::new()).with_path("map", path)?;
        Ok(Arc::new(Self { file, map }))
    }

    /// A large range is mapped separately and then unmapped, so that it does not stay in memory.
    pub fn read_once<R>(&self, range: Range<usize>, read: impl FnOnce(&[u8]) -> R) -> io::Result<R> {
        if range.len() < LARGE {
            return Ok(read(&self.map[range]));
        }
        let part = map(&self.file, MmapOptions::new().offset(range.start as u64).len(range.len()))?;
        Ok(read(&part))
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

fn map(file: &File, options: &MmapOptions) -> io::Result<Mmap> {
    // SAFETY: the mapping is read-only and private to the value returned. What the type system cannot see is
    // another process that changes the file meanwhile: archives are published by rename and never modified in
    // place, checkpoints are read-only by convention, and no decision made while verifying is trusted to hold
    // for the bytes of the data themselves, which are plain numbers.
    #[allow(unsafe_code)]
    unsafe {
        options.map(file)
    }
}
