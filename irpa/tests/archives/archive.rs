//! Archives through the public interface: the bytes, the round trip, and what is left after an error.

use errors::FileError;
use ops::{ElementType, TensorType};
use std::{fs, ops::ControlFlow, path::Path};
use tracewright_irpa::{Archive, ArchiveError, EntryData, EntryProblem, NewEntry, Sink, WriteOptions, write};

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(ElementType::F32, shape)
}

/// Bytes from integers of chosen widths, as in the tables of the format.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    fn u64(mut self, values: &[u64]) -> Self {
        self.0.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }
    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
    fn zeros_to(mut self, length: usize) -> Self {
        assert!(self.0.len() <= length);
        self.0.resize(length, 0);
        self
    }
}

#[test]
fn every_byte_is_where_the_format_says() {
    let data_b: Vec<u8> = (1..=70).collect();
    let blob_a =
        format!(r#"{{"dtype":"f32","shape":[2],"blake3":"{}"}}"#, blake3::hash(b"abcdefgh").to_hex());
    let blob_b = format!(
        r#"{{"dtype":"i8","shape":[7,10],"blake3":"{}","recipe":"r(x)","sources":["x"]}}"#,
        blake3::hash(&data_b).to_hex()
    );
    let blob_c = r#"{"dtype":"bf16","shape":[6]}"#;
    let [a, b, c] = [blob_a.len() as u64, blob_b.len() as u64, blob_c.len() as u64];
    let metadata = 3 + a + b + c;
    // 96: a, data, 76 bytes; 176: b, data, 76; 256: c, splat, 85, not padded; 341: metadata.
    let storage = (341 + metadata).next_multiple_of(64);
    let expected = Bytes::default()
        .raw(b"IRPA")
        .u16(0)
        .u16(0)
        .u64(&[88, 0, 0, 3, 96, 245, 341, metadata, storage, 64 + 70])
        .zeros_to(96)
        .u64(&[76])
        .u32(2)
        .u64(&[0, 0, 1, 1, a, 64, 0, 8])
        .zeros_to(176)
        .u64(&[76])
        .u32(2)
        .u64(&[0, 1 + a, 1, 2 + a, b, 64, 64, 70])
        .zeros_to(256)
        .u64(&[85])
        .u32(1)
        .u64(&[0, 2 + a + b, 1, 3 + a + b, c, 0, 12])
        .raw(&[0x80, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2])
        .raw(b"a")
        .raw(blob_a.as_bytes())
        .raw(b"b")
        .raw(blob_b.as_bytes())
        .raw(b"c")
        .raw(blob_c.as_bytes())
        .zeros_to(storage as usize)
        .raw(b"abcdefgh")
        .zeros_to(storage as usize + 64)
        .raw(&data_b)
        .zeros_to(4096);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("three.irpa");
    let entries = vec![
        NewEntry::splat("c", TensorType::new(ElementType::Bf16, [6]), &[0x80, 0x3f]),
        NewEntry::tensor("b", TensorType::new(ElementType::I8, [7, 10]))
            .with_recipe("r(x)", vec!["x".into()]),
        NewEntry::tensor("a", f32s(&[2])),
    ];
    write(&path, entries, WriteOptions::default(), |entry, sink| {
        sink.write(if entry.name() == "a" { b"abcdefgh" } else { &data_b })
    })
    .unwrap_or_else(|error: ArchiveError| panic!("{error}"));
    let found = fs::read(&path).unwrap();
    let difference = found.iter().zip(&expected.0).position(|(a, b)| a != b);
    assert_eq!((found.len(), difference), (expected.0.len(), None));

    let archive = Archive::open(&path).unwrap();
    assert_eq!((*archive.bytes()).as_ref(), found);
    assert_eq!(archive.entries().iter().map(|e| e.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(archive.data("b"), Some(&data_b[..]));
    let b = archive.get("b").unwrap();
    assert_eq!((b.ty.as_ref().unwrap().to_string(), b.recipe.as_deref()), ("i8[7,10]".into(), Some("r(x)")));
    assert_eq!(b.sources, ["x"]);
    assert_eq!(archive.get("c").unwrap().data, EntryData::Splat { pattern: vec![0x80, 0x3f], length: 12 });
    assert_eq!((archive.get("d"), archive.data("c")), (None, None));
    let verified = archive.verify_content(None).unwrap();
    assert_eq!((verified.entries, verified.bytes, verified.without_hash), (2, 78, vec!["c".to_owned()]));
    assert_eq!(archive.table_blake3(), blake3::hash(&expected.0[..storage as usize]).to_string());
}

#[test]
fn an_empty_archive_is_one_page() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty.irpa");
    write(&path, vec![], WriteOptions::default(), |_, _| Ok::<(), ArchiveError>(())).unwrap();
    let expected =
        Bytes::default().raw(b"IRPA").u32(0).u64(&[88, 0, 0, 0, 96, 0, 96, 0, 96, 0]).zeros_to(4096);
    assert_eq!(fs::read(&path).unwrap(), expected.0);
    assert!(Archive::open(&path).unwrap().entries().is_empty());
}

#[test]
fn a_damaged_byte_of_data_is_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.irpa");
    let fill = |entry: &NewEntry, sink: &mut Sink<'_>| sink.write(&vec![7; entry.ty().unwrap().bytes()]);
    // One is longer than what is hashed at once.
    let entries = [("v", 10), ("w", 5 << 20), ("x", 1000), ("y", 10)]
        .map(|(name, count)| NewEntry::tensor(name, f32s(&[count])));
    write(&path, entries.to_vec(), WriteOptions::default(), fill).unwrap();
    let archive = Archive::open(&path).unwrap();
    let (sound, name) = (archive.verify_content(None).unwrap(), archive.table_blake3());
    assert_eq!((sound.entries, sound.bytes), (4, 4 * ((5 << 20) + 1020)));
    let mut bytes = fs::read(&path).unwrap();
    let starts = ["w", "x"].map(|name| match archive.get(name).unwrap().data.clone() {
        EntryData::Range(range) => range.start,
        EntryData::Splat { .. } => panic!("`{name}` has data"),
    });
    bytes[starts[0] + (18 << 20)] ^= 0x10;
    bytes[starts[1] + 1234] ^= 0x10;
    fs::write(&path, bytes).unwrap();
    let archive = Archive::open(&path).unwrap();
    let ArchiveError::Content { damaged, .. } = archive.verify_content(None).unwrap_err() else { panic!() };
    let found: Vec<_> = damaged.iter().map(|damage| (damage.name.as_str(), damage.offset)).collect();
    assert_eq!(found, [("w", starts[0] as u64), ("x", starts[1] as u64)]);
    assert_eq!(archive.table_blake3(), name);

    let mut calls = 0;
    let mut watch = |progress: tracewright_irpa::Progress| {
        calls += 1;
        assert_eq!((progress.done, progress.total), ([40, 40 + (16 << 20)][calls - 1], sound.bytes));
        if calls == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let cancelled = archive.verify_content(Some(&mut watch)).unwrap_err();
    assert!(matches!(cancelled, ArchiveError::Cancelled { .. }), "{cancelled}");
}

fn listing(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|item| item.file_name());
    names.map(|name| name.to_string_lossy().into_owned()).collect()
}

#[test]
fn after_any_error_the_old_archive_is_still_there_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept.irpa");
    fs::write(&path, "IRPA, the old one").unwrap();
    let entries = || vec![NewEntry::tensor("w", f32s(&[1 << 20])), NewEntry::raw("x", 10)];
    let attempt = |options: WriteOptions<'_>,
                   source: &mut dyn FnMut(&mut Sink<'_>) -> Result<(), ArchiveError>| {
        let error = write(&path, entries(), options, |_, sink| source(sink)).unwrap_err();
        assert_eq!(listing(folder.path()), ["kept.irpa"]);
        assert_eq!(fs::read(&path).unwrap(), b"IRPA, the old one");
        error
    };
    let short = attempt(WriteOptions::default(), &mut |sink| sink.write(&[1; 999]));
    assert!(matches!(short, ArchiveError::SourceLength { expected: 4194304, found: 999, .. }), "{short}");
    let long =
        attempt(WriteOptions::default(), &mut |sink| (0..5).try_for_each(|_| sink.write(&vec![0; 1 << 20])));
    assert!(matches!(long, ArchiveError::SourceLength { expected: 4194304, found: 5242880, .. }), "{long}");
    let own = attempt(WriteOptions::default(), &mut |_| {
        Err(ArchiveError::NoTensor { path: "checkpoint".into(), name: "w".into() })
    });
    assert_eq!(own.to_string(), "`checkpoint` contains no tensor `w`");
    let mut calls = 0;
    let mut watch = |progress: tracewright_irpa::Progress| {
        calls += 1;
        assert_eq!((progress.done, progress.total), (calls << 20, 4194314));
        if calls == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let options = WriteOptions { watch: Some(&mut watch), ..Default::default() };
    let cancelled = attempt(options, &mut |sink| sink.write(&vec![0; 4 << 20]));
    assert!(matches!(cancelled, ArchiveError::Cancelled { .. }), "{cancelled}");
    let panicked = std::panic::catch_unwind(|| {
        write(&path, entries(), WriteOptions::default(), |_, _| -> Result<(), ArchiveError> {
            panic!("on purpose")
        })
    });
    assert!(panicked.is_err());
    assert_eq!(listing(folder.path()), ["kept.irpa"]);
}

#[test]
fn what_cannot_be_written_is_said_before_the_first_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("never.irpa");
    let attempt = |entries: Vec<NewEntry>| {
        let error = write(&path, entries, WriteOptions::default(), |_, _| -> Result<(), ArchiveError> {
            unreachable!()
        })
        .unwrap_err();
        assert!(listing(folder.path()).is_empty());
        error
    };
    let problem = |entries| match attempt(entries) {
        ArchiveError::Entry { problem, .. } => problem,
        other => panic!("{other}"),
    };
    assert_eq!(problem(vec![NewEntry::raw("a", 1), NewEntry::raw("a", 2)]), EntryProblem::Duplicate);
    assert_eq!(problem(vec![NewEntry::raw("", 1)]), EntryProblem::Unnamed);
    let huge = f32s(&[usize::MAX, 3]);
    assert_eq!(problem(vec![NewEntry::tensor("a", huge.clone())]), EntryProblem::TooLarge(Some(huge)));
    let half = || NewEntry::raw("a", u64::MAX / 8 * 3);
    assert_eq!(problem(vec![half()]), EntryProblem::TooLarge(None));
    let splat = NewEntry::splat("a", f32s(&[2]), &[1, 2, 3]);
    assert_eq!(problem(vec![splat]), EntryProblem::Splat { pattern: 3, length: 8 });
    let full = attempt(vec![NewEntry::raw("a", 1 << 60)]);
    let ArchiveError::DiskFull { path: at, needed, available: Some(available) } = &full else {
        panic!("{full}")
    };
    assert_eq!((at, *needed), (&path, (1 << 60) + 4096));
    assert!(available < needed);
    let nowhere = folder.path().join("missing").join("a.irpa");
    let error =
        write(&nowhere, vec![], WriteOptions::default(), |_, _| Ok::<(), ArchiveError>(())).unwrap_err();
    assert!(error.to_string().contains(nowhere.to_str().unwrap()), "{error}");
}

#[test]
fn errors_name_file_offset_expected_and_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.irpa");
    fs::write(&path, [0; 4096]).unwrap();
    let error = Archive::open(&path).unwrap_err().to_string();
    let expected = format!(
        r"`{}` is not a valid parameter archive: at byte 0, magic: expected `IRPA`, found `\x00\x00\x00\x00`",
        path.display()
    );
    assert_eq!(error, expected);
    fs::write(&path, []).unwrap();
    assert!(Archive::open(&path).unwrap_err().to_string().ends_with("expected at least 88 bytes, found 0"));
    assert!(matches!(Archive::open(folder.path()), Err(ArchiveError::File(_))));
    assert!(matches!(
        Archive::open(folder.path().join("none")),
        Err(ArchiveError::File(FileError { action: "open", .. }))
    ));
}

#[cfg(unix)]
#[test]
fn an_archive_is_as_readable_as_any_new_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("a.irpa"), folder.path().join("other"));
    write(&path, vec![], WriteOptions::default(), |_, _| Ok::<(), ArchiveError>(())).unwrap();
    fs::write(&other, "").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&path), mode(&other));
}
