//! What needs the inside: hostile bytes by the thousand, and files that cannot be written.

use crate::archive::verify;
use crate::write::{Layout, Target};
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

fn fill(entry: &NewEntry, sink: &mut Sink<'_>) -> Result<(), Error> {
    let length = entry.ty().map_or(100, TensorType::bytes);
    sink.write(&(0..length).map(|i| (i * 37 + 11) as u8).collect::<Vec<_>>())
}

fn check(bytes: &[u8]) -> Result<Vec<Entry>, Error> {
    verify(Path::new("hostile.irpa"), bytes)
}

/// Entry table of the sample: `blob` at 96, `ones` at 176, `w.1` at 272, `w.2` at 352; metadata from 428.
const BLOB: usize = 96;
const ONES: usize = 176;
const W1: usize = 272;
const W2: usize = 352;
const NAMES: usize = 428;

/// Overwrites the sample at each offset and returns the rule that the result breaks, and where.
fn broken(patches: &[(usize, &[u8])]) -> (Rule, u64) {
    let mut bytes = sample().to_vec();
    for (at, patch) in patches {
        bytes[*at..at + patch.len()].copy_from_slice(patch);
    }
    match check(&bytes) {
        Err(Error::Archive { rule, offset, .. }) => (rule, offset),
        other => panic!("{patches:?}: {other:?}"),
    }
}

#[test]
fn every_rule_is_checked_where_it_is_broken() {
    let full = u64::MAX.to_le_bytes();
    let wrap = (u64::MAX - 63).to_le_bytes();
    type Patch<'a> = (usize, &'a [u8]);
    let cases: &[(&[Patch<'_>], Rule, usize)] = &[
        (&[(0, b"G")], Rule::Magic, 0),
        (&[(4, &[1])], Rule::Version, 4),
        (&[(6, &[1])], Rule::Version, 4),
        (&[(8, &[96])], Rule::HeaderSize, 8),
        (&[(16, &[64])], Rule::NextHeader, 16),
        (&[(24, &[1])], Rule::Flags, 24),
        (&[(32, &[3])], Rule::EntryCount, 48),
        (&[(32, &[5])], Rule::EntryCount, 32),
        (&[(32, &full)], Rule::EntryCount, 32),
        (&[(40, &[80])], Rule::Segment, 40),
        (&[(40, &[112])], Rule::Segment, 40),
        (&[(40, &wrap)], Rule::Segment, 40),
        (&[(48, &full)], Rule::Segment, 40),
        (&[(56, &[0; 8])], Rule::Segment, 56),
        (&[(64, &wrap)], Rule::Segment, 56),
        (&[(72, &wrap), (80, &[64, 0])], Rule::Segment, 72),
        (&[(80, &full)], Rule::Segment, 72),
        (&[(80, &[223])], Rule::Segment, 80),
        (&[(88, &[1])], Rule::Gap, 88),
        (&[(BLOB, &[77])], Rule::EntrySize, BLOB),
        (&[(BLOB, &full), (BLOB + 8, &[0])], Rule::EntrySize, BLOB),
        (&[(BLOB + 8, &[3])], Rule::EntryType, BLOB + 8),
        (&[(BLOB + 12, &[1])], Rule::Flags, BLOB + 12),
        (&[(BLOB + 20, &full)], Rule::Range, BLOB + 20),
        (&[(BLOB + 28, &wrap)], Rule::Range, BLOB + 20),
        (&[(BLOB + 36, &full), (BLOB + 44, &[1])], Rule::Range, BLOB + 36),
        (&[(BLOB + 52, &[3])], Rule::Alignment, BLOB + 52),
        (&[(BLOB + 60, &[32])], Rule::Alignment, BLOB + 60),
        (&[(BLOB + 60, &wrap), (BLOB + 68, &[64])], Rule::Range, BLOB + 60),
        (&[(BLOB + 68, &full)], Rule::Range, BLOB + 60),
        (&[(BLOB + 76, &[9])], Rule::Gap, BLOB + 76),
        (&[(ONES + 60, &[1])], Rule::Splat, ONES + 60),
        (&[(ONES + 84, &[3])], Rule::Splat, ONES + 84),
        (&[(ONES + 75, &[1])], Rule::Gap, ONES + 75),
        (&[(ONES + 61, &[9])], Rule::Metadata, NAMES + 8),
        (&[(W1 + 60, &[64])], Rule::Overlap, 832),
        (&[(W2 + 20, &[0])], Rule::Overlap, NAMES),
        (&[(NAMES, &[0xff])], Rule::Name, NAMES),
        (&[(BLOB + 28, &[0])], Rule::Gap, NAMES),
        (&[(NAMES, b"z")], Rule::Order, NAMES + 4),
    ];
    for (patches, rule, offset) in cases {
        assert_eq!(broken(patches), (*rule, *offset as u64), "{patches:?}");
    }
    let w1 = sample().windows(3).position(|bytes| bytes == b"w.1").unwrap();
    let w2 = sample().windows(3).position(|bytes| bytes == b"w.2").unwrap();
    assert_eq!(broken(&[(w2, b"w.1")]), (Rule::Order, w2 as u64));
    let dtype = sample()[w1..].windows(3).position(|bytes| bytes == b"f32").unwrap() + w1;
    assert_eq!(broken(&[(dtype, b"f33")]), (Rule::Metadata, w1 as u64 + 3));
    assert_eq!(broken(&[(dtype, b"f16")]), (Rule::Metadata, w1 as u64 + 3));
    let hash = sample()[w1..].windows(9).position(|bytes| bytes == b"blake3\":\"").unwrap() + w1 + 9;
    assert_eq!(broken(&[(hash, b"Z")]), (Rule::Metadata, w1 as u64 + 3));
    let longer = |byte| check(&[sample(), &[byte; 4096]].concat());
    assert!(matches!(longer(0), Err(Error::Archive { rule: Rule::FileSize, .. })));
    assert!(matches!(longer(1), Err(Error::Archive { rule: Rule::FileSize, .. })));
}

#[test]
fn a_skipped_entry_is_no_entry() {
    // A tool that skips an entry leaves its data; they would belong to nothing, so they are zeroed here.
    let mut bytes = sample().to_vec();
    let Storage::Data(data) = check(&bytes).unwrap()[0].storage.clone() else { panic!() };
    bytes[BLOB + 8] = 0;
    assert!(matches!(check(&bytes), Err(Error::Archive { rule: Rule::Gap, .. })));
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
    /// Whatever the header and the table say, the verifier returns; what it lets pass lies inside the file.
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
            if let Storage::Data(range) = entry.storage {
                prop_assert!(bytes.get(range).is_some());
            }
        }
    }
}

/// Takes so many bytes, then is full.
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

fn stream_into(out: &mut (impl io::Write + io::Seek)) -> Result<(), Error> {
    let layout = Layout::plan(sample_entries(), true)?;
    let target = Target { path: Path::new("full.irpa"), folder: Path::new("."), size: layout.file_size };
    layout.stream(&target, out, None, fill)
}

#[test]
fn a_full_disk_is_named_with_what_is_needed() {
    for room in (0..sample().len() as u64).step_by(101) {
        match stream_into(&mut Small(io::Cursor::default(), room)) {
            Err(Error::DiskFull { path, needed, .. }) => {
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
    assert!(matches!(stream_into(&mut full), Err(Error::DiskFull { available: Some(_), .. })));
}
