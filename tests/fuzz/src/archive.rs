//! Fuzzes IREE parameter archives: verified entries must lie inside the file.

use std::path::Path;

use tracewright::irpa::{Archive, EntryData};

use crate::{said, written};

pub fn read(folder: &Path, bytes: &[u8]) {
    let path = written(folder, "model.irpa", bytes);
    let Some(archive) = said(Archive::open(&path)) else { return };
    for entry in archive.entries() {
        let data = archive.data(&entry.name);
        let there = matches!(entry.data, EntryData::Splat { .. }) || data.is_some();
        assert!(there, "`{}` is not there", entry.name);
        if let (Some(ty), Some(data)) = (&entry.ty, data) {
            assert_eq!(data.len(), ty.bytes(), "`{}` is {ty}", entry.name);
        }
    }
    archive.table_blake3();
    said(archive.verify_content(None));
}
