//! Tests that need private items of the crate. The tests read archives with malicious bytes, and
//! write files to a full disk.

use crate::archive::verify;
use crate::write::{ArchivePlan, Destination};
use crate::*;
use ops::{ElementType, TensorType};
use proptest::prelude::*;
use std::{fs, io, path::Path, sync::LazyLock};

fn sample_entries() -> Vec<NewEntry> {
    vec![
        NewEntry::tensor("w.2", TensorType::new(ElementType::Bf16, [3, 5])),
        NewEntry::splat("ones", TensorType::new(ElementType::F32, [640]), &1f32.to_le_bytes()),
        NewEntry::raw("blob", 100),
        NewEntry::tensor("w.1", TensorType::new(ElementType::F32, [7]))
            .with_recipe("transpose", vec!["w".into()]),
    ]
}

fn sample() -> &'static [u8] {
    static SAMPLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sample.irpa");
        write(&path, sample_entries(), WriteOptions::default(), fill).unwrap();
        fs::read(path).unwrap()
    });
    &SAMPLE
}

fn fill(entry: &NewEntry, sink: &mut Sink<'_>) -> Result<(), ArchiveError> {
    let length = entry.ty().map_or(100, TensorType::bytes);
    sink.write(&(0..length).map(|i| (i * 37 + 11) as u8).collect::<Vec<_>>())
}

fn check(bytes: &[u8]) -> Result<Vec<Entry>, ArchiveError> {
    verify(Path::new("hostile.irpa"), bytes)
}

/// The offset of the table record for the entry `blob` in the sample archive.
const BLOB: usize = 96;
const ONES: usize = 176;
const W1: usize = 272;
const W2: usize = 352;
const NAMES: usize = 428;

/// Overwrites bytes of the sample archive at the given offsets. The function returns the rule that
/// the changed archive violates, and the offset that the error contains.
fn broken(patches: &[(usize, &[u8])]) -> (ArchiveRule, u64) {
    let mut bytes = sample().to_vec();
    for (at, patch) in patches {
        bytes[*at..at + patch.len()].copy_from_slice(patch);
    }
    match check(&bytes) {
        Err(ArchiveError::Archive { rule, offset, .. }) => (rule, offset),
        other => panic!("{patches:?}: {other:?}"),
    }
}

#[test]
fn every_rule_is_checked_where_it_is_broken() {
    let full = u64::MAX.to_le_bytes();
    let wrap = (u64::MAX - 63).to_le_bytes();
    type Patch<'a> = (usize, &'a [u8]);
    let cases: &[(&[Patch<'_>], ArchiveRule, usize)] = &[
        (&[(0, b"G")], ArchiveRule::Magic, 0),
        (&[(4, &[1])], ArchiveRule::Version, 4),
        (&[(6, &[1])], ArchiveRule::Version, 4),
        (&[(8, &[96])], ArchiveRule::HeaderSize, 8),
        (&[(16, &[64])], ArchiveRule::NextHeader, 16),
        (&[(24, &[1])], ArchiveRule::Flags, 24),
        (&[(32, &[3])], ArchiveRule::EntryCount, 48),
        (&[(32, &[5])], ArchiveRule::EntryCount, 32),
        (&[(32, &full)], ArchiveRule::EntryCount, 32),
        (&[(40, &[80])], ArchiveRule::Segment, 40),
        (&[(40, &[112])], ArchiveRule::Segment, 40),
        (&[(40, &wrap)], ArchiveRule::Segment, 40),
        (&[(48, &full)], ArchiveRule::Segment, 40),
        (&[(56, &[0; 8])], ArchiveRule::Segment, 56),
        (&[(64, &wrap)], ArchiveRule::Segment, 56),
        (&[(72, &wrap), (80, &[64, 0])], ArchiveRule::Segment, 72),
        (&[(80, &full)], ArchiveRule::Segment, 72),
        (&[(80, &[223])], ArchiveRule::Segment, 80),
        (&[(88, &[1])], ArchiveRule::Gap, 88),
        (&[(BLOB, &[77])], ArchiveRule::EntrySize, BLOB),
        (&[(BLOB, &full), (BLOB + 8, &[0])], ArchiveRule::EntrySize, BLOB),
        (&[(BLOB + 8, &[3])], ArchiveRule::EntryType, BLOB + 8),
        (&[(BLOB + 12, &[1])], ArchiveRule::Flags, BLOB + 12),
        (&[(BLOB + 20, &full)], ArchiveRule::Range, BLOB + 20),
        (&[(BLOB + 28, &wrap)], ArchiveRule::Range, BLOB + 20),
        (&[(BLOB + 36, &full), (BLOB + 44, &[1])], ArchiveRule::Range, BLOB + 36),
        (&[(BLOB + 52, &[3])], ArchiveRule::Alignment, BLOB + 52),
        (&[(BLOB + 60, &[32])], ArchiveRule::Alignment, BLOB + 60),
        (&[(BLOB + 60, &wrap), (BLOB + 68, &[64])], ArchiveRule::Range, BLOB + 60),
        (&[(BLOB + 68, &full)], ArchiveRule::Range, BLOB + 60),
        (&[(BLOB + 76, &[9])], ArchiveRule::Gap, BLOB + 76),
        (&[(ONES + 60, &[1])], ArchiveRule::Splat, ONES + 60),
        (&[(ONES + 84, &[3])], ArchiveRule::Splat, ONES + 84),
        (&[(ONES + 75, &[1])], ArchiveRule::Gap, ONES + 75),
        (&[(ONES + 61, &[9])], ArchiveRule::Metadata, NAMES + 8),
        (&[(W1 + 60, &[64])], ArchiveRule::Overlap, 832),
        (&[(W2 + 20, &[0])], ArchiveRule::Overlap, NAMES),
        (&[(NAMES, &[0xff])], ArchiveRule::Name, NAMES),
        (&[(BLOB + 28, &[0])], ArchiveRule::Gap, NAMES),
        (&[(NAMES, b"z")], ArchiveRule::Order, NAMES + 4),
    ];
    for (patches, rule, offset) in cases {
        assert_eq!(broken(patches), (*rule, *offset as u64), "{patches:?}");
    }
    let w1 = sample().windows(3).position(|bytes| bytes == b"w.1").unwrap();
    let w2 = sample().windows(3).position(|bytes| bytes == b"w.2").unwrap();
    assert_eq!(broken(&[(w2, b"w.1")]), (ArchiveRule::Order, w2 as u64));
    let dtype = sample()[w1..].windows(3).position(|bytes| bytes == b"f32").unwrap() + w1;
    assert_eq!(broken(&[(dtype, b"f33")]), (ArchiveRule::Metadata, w1 as u64 + 3));
    assert_eq!(broken(&[(dtype, b"f16")]), (ArchiveRule::Metadata, w1 as u64 + 3));
    let hash = sample()[w1..].windows(9).position(|bytes| bytes == b"blake3\":\"").unwrap() + w1 + 9;
    assert_eq!(broken(&[(hash, b"Z")]), (ArchiveRule::Metadata, w1 as u64 + 3));
    let longer = |byte| check(&[sample(), &[byte; 4096]].concat());
    assert!(matches!(longer(0), Err(ArchiveError::Archive { rule: ArchiveRule::FileSize, .. })));
    assert!(matches!(longer(1), Err(ArchiveError::Archive { rule: ArchiveRule::FileSize, .. })));
}

#[test]
fn a_skipped_entry_is_no_entry() {
    // A tool that skips an entry leaves its data; they would belong to nothing, so they are zeroed here.
    let mut bytes = sample().to_vec();
    let EntryData::Range(data) = check(&bytes).unwrap()[0].data.clone() else { panic!() };
    bytes[BLOB + 8] = 0;
    assert!(matches!(check(&bytes), Err(ArchiveError::Archive { rule: ArchiveRule::Gap, .. })));
    bytes[data].fill(0);
    let names: Vec<_> = check(&bytes).unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["ones", "w.1", "w.2"]);
}

#[test]
fn truncated_at_any_byte_is_an_error() {
    for length in 0..sample().len() {
        assert!(check(&sample()[..length]).is_err(), "{length}");
    }
    check(sample()).unwrap();
}

#[test]
fn no_flipped_bit_panics_and_none_in_the_header_passes() {
    let mut bytes = sample().to_vec();
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let result = check(&bytes);
        assert!(result.is_err() || bit / 8 >= BLOB, "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

proptest! {
    /// For any header and any table, the verifier terminates without a panic. The data of all
    /// accepted entries are inside the file.
    #[test]
    fn no_garbage_panics(
        patches in prop::collection::vec(
            (0..NAMES - 8, prop_oneof![any::<u64>(), 0..200u64, Just(u64::MAX), (0..70u64).prop_map(u64::wrapping_neg)]),
            1..4,
        ),
        aligned in any::<bool>(),
    ) {
        let mut bytes = sample().to_vec();
        for (at, value) in patches {
            let at = if aligned { at / 4 * 4 } else { at };
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        for entry in check(&bytes).unwrap_or_default() {
            if let EntryData::Range(range) = entry.data {
                prop_assert!(bytes.get(range).is_some());
            }
        }
    }
}

/// A file on a disk that is full after a fixed number of bytes.
struct Small(io::Cursor<Vec<u8>>, u64);

impl io::Write for Small {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.position() + bytes.len() as u64 > self.1 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Seek for Small {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

fn stream_into(out: &mut (impl io::Write + io::Seek)) -> Result<(), ArchiveError> {
    let layout = ArchivePlan::new(sample_entries(), true)?;
    let destination =
        Destination { path: Path::new("full.irpa"), folder: Path::new("."), size: layout.file_size };
    layout.stream(&destination, out, None, fill)
}

#[test]
fn a_full_disk_is_named_with_what_is_needed() {
    for room in (0..sample().len() as u64).step_by(101) {
        match stream_into(&mut Small(io::Cursor::default(), room)) {
            Err(ArchiveError::DiskFull { path, needed, .. }) => {
                assert_eq!((path.as_path(), needed), (Path::new("full.irpa"), sample().len() as u64));
            }
            other => panic!("{room}: {other:?}"),
        }
    }
    let mut enough = Small(io::Cursor::default(), sample().len() as u64);
    stream_into(&mut enough).unwrap();
    assert_eq!(enough.0.into_inner(), sample());
}

#[cfg(target_os = "linux")]
#[test]
fn the_kernels_full_disk_is_the_same_error() {
    let mut full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert!(matches!(stream_into(&mut full), Err(ArchiveError::DiskFull { available: Some(_), .. })));
}
