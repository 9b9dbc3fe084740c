//! Checkpoints: what is read, and what is said about those that cannot be.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use errors::{FileError, WithCauses};
use files::StandIn;
use ops::ElementType::{self, *};
use safetensors::{serialize, tensor::TensorView};
use std::{collections::BTreeMap, fs, path::Path};
use tracewright_irpa::{
    Archive, ArchiveError, Checkpoint, ConvertOptions, Converted, Dtype, IndexProblem, ShardDifference,
    UnsupportedFormat, convert_checkpoint,
};

fn safetensors(tensors: &[(&str, Dtype, &[usize], &[u8])]) -> Vec<u8> {
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        (name.to_string(), TensorView::new(*dtype, shape.to_vec(), data).expect("a valid fixture"))
    });
    serialize(views, None).expect("a valid fixture")
}

fn index(map: &[(&str, &str)]) -> String {
    let map: BTreeMap<_, _> = map.iter().copied().collect();
    serde_json::json!({ "metadata": { "total_size": 1 }, "weight_map": map }).to_string()
}

/// A folder with these files.
fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a valid fixture");
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).expect("a valid fixture");
    }
    folder
}

fn names(checkpoint: &Checkpoint) -> Vec<&str> {
    checkpoint.tensors().map(|tensor| tensor.name.as_str()).collect()
}

const F32X2: [u8; 8] = [0, 0, 0x80, 0x3f, 0, 0, 0, 0x40];

#[test]
fn a_single_file_is_read_from_its_folder_or_by_name() {
    let bytes = safetensors(&[
        ("w", Dtype::F32, &[2], &F32X2),
        ("ids", Dtype::I64, &[1], &[1; 8]),
        ("mask", Dtype::BOOL, &[3], &[1, 0, 1]),
    ]);
    let folder = folder(&[("model.safetensors", &bytes), ("pytorch_model.bin", b"PK")]);
    let file = folder.path().join("model.safetensors");
    for path in [folder.path(), &file] {
        let checkpoint = Checkpoint::open(path).unwrap();
        assert_eq!(names(&checkpoint), ["ids", "mask", "w"]);
        assert_eq!(checkpoint.data("w").unwrap(), F32X2);
        assert_eq!(checkpoint.read_once("w", <[u8]>::to_vec).unwrap(), F32X2);
        assert_eq!(checkpoint.ty("w").unwrap().to_string(), "f32[2]");
        assert_eq!(checkpoint.ty("mask").unwrap().to_string(), "i1[3]");
        let tensor = checkpoint.get("w").unwrap();
        assert_eq!(checkpoint.file(tensor), file);
        assert_eq!(bytes[tensor.range.clone()], F32X2);
        // A type that is not computed with matters only to those who ask for it.
        let error = checkpoint.ty("ids").unwrap_err();
        assert!(
            matches!(&error, ArchiveError::Dtype { name, dtype: Dtype::I64, .. } if name == "ids"),
            "{error}"
        );
        assert!(matches!(checkpoint.data("none"), Err(ArchiveError::NoTensor { .. })));
    }
}

/// Two experts with gate and up in one tensor, one renamed, and one whose rows do not come out even.
#[test]
fn a_stack_is_taken_apart() {
    let bytes: Vec<u8> = (0..24).collect();
    let stacked = safetensors(&[
        ("0.moe.gate_up", Dtype::I8, &[2, 4, 3], &bytes),
        ("0.moe.router", Dtype::I8, &[2], &[1, 2]),
        ("1.moe.gate_up", Dtype::I8, &[2, 3, 4], &bytes),
        ("gate_up", Dtype::I8, &[1], &[5]),
    ]);
    let folder = folder(&[("model.safetensors", &stacked)]);
    let stacks: &[(&str, &[&str])] =
        &[(".moe.gate_up", &[".experts.*.gate", ".experts.*.up"]), (".moe.router", &[".router"])];
    let checkpoint = Checkpoint::open(folder.path()).unwrap().apart(stacks);
    assert_eq!(
        names(&checkpoint),
        [
            "0.experts.0.gate",
            "0.experts.0.up",
            "0.experts.1.gate",
            "0.experts.1.up",
            "0.router",
            "1.moe.gate_up",
            "gate_up"
        ]
    );
    let found =
        checkpoint.tensors().take(4).map(|tensor| checkpoint.data(&tensor.name).unwrap()).collect::<Vec<_>>();
    assert_eq!(found, [&bytes[..6], &bytes[6..12], &bytes[12..18], &bytes[18..]]);
    assert_eq!(checkpoint.ty("0.experts.1.up").unwrap().to_string(), "i8[2,3]");
    assert_eq!(checkpoint.get("0.experts.1.up").unwrap().source, "0.moe.gate_up");
    assert_eq!(
        (checkpoint.ty("0.router").unwrap().to_string(), checkpoint.data("0.router").unwrap()),
        ("i8[2]".into(), &[1, 2][..])
    );
}

#[test]
fn a_folder_beside_is_read_under_its_name() {
    let [one, two] = [1u8, 2].map(|byte| safetensors(&[("w", Dtype::I8, &[1], &[byte])]));
    let folder = folder(&[("model.safetensors", &one)]);
    fs::create_dir(folder.path().join("2_Dense")).unwrap();
    fs::write(folder.path().join("2_Dense/model.safetensors"), two).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert!(matches!(checkpoint.clone().with_folder("3_Dense"), Err(ArchiveError::File(_))));
    let both = checkpoint.with_folder("2_Dense").unwrap();
    assert_eq!(names(&both), ["2_Dense.w", "w"]);
    assert_eq!(both.get("2_Dense.w").unwrap().source, "w");
    assert_eq!((both.data("2_Dense.w").unwrap(), both.data("w").unwrap()), (&[2][..], &[1][..]));
}

#[test]
fn shards_are_read_through_the_index() {
    let first = safetensors(&[("a", Dtype::F32, &[2], &F32X2)]);
    let second = safetensors(&[("b", Dtype::I8, &[3], &[1, 2, 3])]);
    let index = index(&[("a", "s1.safetensors"), ("b", "s2.safetensors")]);
    let folder = folder(&[
        ("blob", &first),
        ("s2.safetensors", &second),
        ("model.safetensors.index.json", index.as_bytes()),
    ]);
    // A download cache is made of links.
    #[cfg(unix)]
    std::os::unix::fs::symlink("blob", folder.path().join("s1.safetensors")).unwrap();
    #[cfg(not(unix))]
    fs::rename(folder.path().join("blob"), folder.path().join("s1.safetensors")).unwrap();
    for path in [folder.path().to_path_buf(), folder.path().join("model.safetensors.index.json")] {
        let checkpoint = Checkpoint::open(path).unwrap();
        assert_eq!(names(&checkpoint), ["a", "b"]);
        assert_eq!(
            (checkpoint.data("a").unwrap(), checkpoint.data("b").unwrap()),
            (&F32X2[..], &[1, 2, 3][..])
        );
        assert_eq!(checkpoint.files().count(), 2);
    }
}

#[test]
fn of_a_thousand_shards_that_are_missing_fifty_are_listed() {
    let entries: Vec<_> = (0..1000).map(|i| (format!("w{i}"), format!("s{i}.safetensors"))).collect();
    let entries: Vec<_> = entries.iter().map(|(name, shard)| (&**name, &**shard)).collect();
    let folder = folder(&[("model.safetensors.index.json", index(&entries).as_bytes())]);
    let said = Checkpoint::open(folder.path()).unwrap_err().to_string();
    assert!(said.ends_with("; and 950 more") && said.len() < 10_000, "{said}");
}

#[test]
fn everything_in_which_index_and_shards_disagree_is_listed_at_once() {
    let first = safetensors(&[("a", Dtype::I8, &[1], &[1]), ("both", Dtype::I8, &[1], &[1])]);
    let second = safetensors(&[("b", Dtype::I8, &[1], &[2]), ("both", Dtype::I8, &[1], &[1])]);
    let index = index(&[
        ("a", "s1"),
        ("b", "s1"),
        ("both", "s2"),
        ("c", "s2"),
        ("d", "missing"),
        ("e", "../outside"),
        ("f", "sub/dir"),
        ("g", "/etc/passwd"),
        ("h", ".."),
        ("i", ""),
        ("j", "a\\b"),
    ]);
    let folder =
        folder(&[("s1", &first), ("s2", &second), ("model.safetensors.index.json", index.as_bytes())]);
    let error = Checkpoint::open(folder.path()).unwrap_err();
    let ArchiveError::IndexMismatch { problems, .. } = &error else { panic!("{error}") };
    let name = |name: &str| IndexProblem::ShardName(name.into());
    let tensor =
        |name: &str, shard: &str| IndexProblem::MissingTensor { name: name.into(), shard: shard.into() };
    let expected = [
        name(""),
        name(".."),
        name("../outside"),
        name("/etc/passwd"),
        name("a\\b"),
        IndexProblem::MissingShard("missing".into()),
        name("sub/dir"),
        tensor("b", "s1"),
        tensor("c", "s2"),
    ];
    assert_eq!(problems, &expected);
    for text in
        ["shard `missing` is missing", "tensor `c` is not in shard `s2`", "`../outside` is not a plain"]
    {
        assert!(error.to_string().contains(text), "{error}");
    }
}

/// Overlays: the index says which shard has a tensor. One that it does not list is that of the last shard, as transformers
/// 5.24 loads it.
#[test]
fn of_a_tensor_in_several_shards_the_index_decides() {
    let shard = |own, number: u8| {
        let one = [number];
        let tensor = |name| (name, Dtype::I8, &[1_usize][..], &one[..]);
        safetensors(&[tensor(own), tensor("listed"), tensor("unlisted")])
    };
    let (first, second) = (shard("a", 1), shard("b", 2));
    let open = |index: &str| {
        let files: [(&str, &[u8]); 3] =
            [("s1", &first), ("s2", &second), ("model.safetensors.index.json", index.as_bytes())];
        Checkpoint::open(folder(&files).path())
    };
    for (named, number) in [("s1", 1), ("s2", 2)] {
        let checkpoint = open(&index(&[("a", "s1"), ("b", "s2"), ("listed", named)])).unwrap();
        assert_eq!(checkpoint.data("listed").unwrap(), [number], "{named}");
        assert_eq!(checkpoint.data("unlisted").unwrap(), [2], "{named}");
        let unlisted: Vec<_> = checkpoint.tensors().filter(|t| t.unlisted).map(|t| &*t.name).collect();
        assert_eq!(unlisted, ["unlisted"]);
    }
    let error = open(&index(&[("a", "s1"), ("b", "s1"), ("listed", "s2")])).unwrap_err().to_string();
    assert!(error.contains("tensor `b` is not in shard `s1`") && !error.contains("listed"), "{error}");
}

/// A file comes before shards; what the warning compares is what costs nothing to read.
#[test]
fn a_file_beside_shards_is_read_and_what_differs_is_known() {
    let content = |numbers: &[u8]| safetensors(&[("w", Dtype::I8, &[numbers.len()], numbers)]);
    let index = index(&[("w", "s1")]);
    let numbers = [7; 300];
    let ends = |at: usize| {
        let mut other = numbers;
        other[at] = 8;
        content(&other)
    };
    let half = safetensors(&[("w", Dtype::F16, &[150], &numbers)]);
    let more = safetensors(&[("w", Dtype::I8, &[300], &numbers), ("x", Dtype::I8, &[1], &[1])]);
    let less = safetensors(&[("v", Dtype::I8, &[300], &numbers)]);
    type Case<'a> = (&'a [u8], Option<(&'a str, ShardDifference)>);
    let cases: &[Case<'_>] = &[
        (&content(&numbers), None),
        (&ends(0), Some(("w", ShardDifference::Numbers))),
        (&ends(299), Some(("w", ShardDifference::Numbers))),
        (&half, Some(("w", ShardDifference::Type))),
        (&more, Some(("x", ShardDifference::OnlyInFile))),
        (&less, Some(("v", ShardDifference::OnlyInFile))),
    ];
    let shard = content(&numbers);
    for (single, expected) in cases {
        let files: [(&str, &[u8]); 3] = [
            ("model.safetensors", single),
            ("model.safetensors.index.json", index.as_bytes()),
            ("s1", &shard),
        ];
        for missing in [false, true] {
            let folder = folder(&files[..if missing { 2 } else { 3 }]);
            let checkpoint = Checkpoint::open(folder.path()).unwrap();
            assert_eq!(checkpoint.files().count(), 1);
            let found = checkpoint.passed_over().map(|other| (other.tensor.as_str(), other.difference));
            // An index without shards is a leftover.
            assert_eq!(found, expected.filter(|_| !missing));
        }
    }
}

/// One broken shard is what is wrong; beside another, or with anything else, each is listed.
#[test]
fn all_broken_shards_are_named() {
    let sound = safetensors(&[("a", Dtype::I8, &[1], &[1])]);
    let cut = &sound[..sound.len() - 1];
    let index = index(&[("a", "s1"), ("b", "s2"), ("c", "s3")]);
    let with = |shards: [&[u8]; 3]| {
        let files = ["s1", "s2", "s3"].into_iter().zip(shards);
        let files: Vec<_> = files.chain([("model.safetensors.index.json", index.as_bytes())]).collect();
        Checkpoint::open(folder(&files).path()).unwrap_err()
    };
    let [b, c] = ["b", "c"].map(|name| safetensors(&[(name, Dtype::I8, &[1], &[2])]));
    let one = with([&sound, cut, &c]);
    assert!(!matches!(one, ArchiveError::IndexMismatch { .. }) && one.to_string().contains("s2"), "{one}");
    let two = with([&sound, cut, b"no safetensors"]).to_string();
    assert!(two.contains("shard `s2` is broken: ") && two.contains("shard `s3` is broken: "), "{two}");
    let other = with([&sound, cut, &b]).to_string();
    let words = ["shard `s2` is broken: ", "tensor `c` is not in shard `s3`"];
    assert!(words.iter().all(|words| other.contains(words)), "{other}");
}

/// Python wrote it, and its JSON has more numbers.
#[test]
fn an_index_may_have_numbers_that_are_not_finite() {
    let sound = safetensors(&[("a", Dtype::I8, &[1], &[1])]);
    let index = br#"{"metadata": {"loss": [NaN, -Infinity]}, "weight_map": {"a": "s1"}}"#;
    let folder = folder(&[("s1", &sound), ("model.safetensors.index.json", index)]);
    assert_eq!(Checkpoint::open(folder.path()).unwrap().tensors().len(), 1);
}

#[test]
fn a_broken_index_is_named() {
    for text in ["", "[]", "{\"weight_map\": [1]}", "{}"] {
        let folder = folder(&[("model.safetensors.index.json", text.as_bytes())]);
        assert!(matches!(Checkpoint::open(folder.path()), Err(ArchiveError::Index { .. })), "{text}");
    }
}

#[test]
fn other_formats_are_told_what_to_do() {
    let cases: &[(&str, &[u8], UnsupportedFormat, &str)] = &[
        ("pytorch_model.bin", b"PK\x03\x04", UnsupportedFormat::PyTorch, "safe_serialization=True"),
        ("consolidated.00.pth", b"", UnsupportedFormat::PyTorch, "safe_serialization=True"),
    ];
    for (name, bytes, format, advice) in cases {
        let folder = folder(&[(name, bytes), ("config.json", b"{}")]);
        for path in [folder.path(), &folder.path().join(name)] {
            let error = Checkpoint::open(path).unwrap_err();
            assert!(matches!(&error, ArchiveError::Foreign { format: f, .. } if f == format), "{error}");
            assert!(error.to_string().contains(advice), "{error}");
        }
    }
    let files = folder(&[("model.Q4_K_M.gguf", b"GGUF"), ("README.md", b"")]);
    let error = Checkpoint::open(files.path()).unwrap_err();
    assert!(matches!(error, ArchiveError::Foreign { format: UnsupportedFormat::Gguf(_), .. }), "{error}");
    assert!(error.to_string().contains("name the file itself"), "{error}");
    let pointer =
        folder(&[("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:00")]);
    let error = Checkpoint::open(pointer.path()).unwrap_err();
    assert!(
        matches!(
            error,
            ArchiveError::Foreign { format: UnsupportedFormat::StandIn(StandIn::LfsPointer), .. }
        ),
        "{error}"
    );
    let other = folder(&[("consolidated.safetensors", b""), ("pytorch_model.bin", b"")]);
    let error = Checkpoint::open(other.path()).unwrap_err();
    assert!(
        matches!(&error, ArchiveError::NoCheckpoint { found, .. } if found == &["consolidated.safetensors"]),
        "{error}"
    );
    let nothing = Checkpoint::open(folder(&[("config.json", b"{}")]).path()).unwrap_err();
    assert!(nothing.to_string().ends_with("found no weight files"), "{nothing}");
    let missing = Checkpoint::open("no/such/place").unwrap_err();
    assert!(matches!(missing, ArchiveError::File(FileError { action: "open", .. })), "{missing}");
}

#[test]
fn a_truncated_file_says_how_long_it_should_be() {
    let bytes = safetensors(&[("w", Dtype::F32, &[2], &F32X2)]);
    for length in 0..bytes.len() {
        let folder = folder(&[("model.safetensors", &bytes[..length])]);
        let error = Checkpoint::open(folder.path()).unwrap_err();
        let ArchiveError::SafetensorsLength { path, expected, found } = &error else {
            panic!("{length}: {error}")
        };
        assert!(
            path.ends_with("model.safetensors") && *found == length as u64 && *expected > *found,
            "{error}"
        );
        assert!(error.to_string().contains("is truncated"), "{error}");
    }
    let longer = folder(&[("model.safetensors", &[&bytes[..], b"x"].concat())]);
    let error = Checkpoint::open(longer.path()).unwrap_err();
    assert!(error.to_string().contains("is too long"), "{error}");
}

#[test]
fn a_corrupt_file_is_an_error_that_says_what() {
    let file = |json: &str, data: usize| {
        [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), &vec![0; data]].concat()
    };
    let cases = [
        (file("{", 0), "JSON"),
        (file(r#"{"w":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}"#, 4), "unknown variant"),
        (file(r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#, 4), "offset"),
        (file(r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#, 4), "shape"),
        (
            file(r#"{"w":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,4]}}"#, 4),
            "overflow",
        ),
        (vec![0xff; 64], "header too large"),
    ];
    for (bytes, text) in cases {
        let folder = folder(&[("model.safetensors", &bytes)]);
        let error = Checkpoint::open(folder.path()).unwrap_err();
        assert!(matches!(&error, ArchiveError::Safetensors { .. }), "{error}");
        let said = WithCauses(&error).to_string();
        assert!(said.contains(text) && said.contains("model.safetensors"), "{said}");
    }
}

fn bake(folder: &Path, float: Option<ElementType>, metadata: bool) -> Result<Vec<Converted>, ArchiveError> {
    let checkpoint = Checkpoint::open(folder)?;
    let options = ConvertOptions { float, metadata, watch: None };
    convert_checkpoint(&checkpoint, folder.join("out.irpa"), options)
}

#[test]
fn s2_float_to_float_is_converted_and_reported() {
    let bytes = safetensors(&[
        ("a", Dtype::F32, &[2], &F32X2),
        ("b", Dtype::BF16, &[1, 1], &[0x40, 0x40]),
        ("c", Dtype::I32, &[1], &[9, 0, 0, 0]),
    ]);
    let folder = folder(&[("model.safetensors", &bytes)]);
    let converted = bake(folder.path(), Some(Bf16), true).unwrap();
    assert_eq!(converted, [Converted { name: "a".into(), from: F32, to: Bf16 }]);
    let archive = Archive::open(folder.path().join("out.irpa")).unwrap();
    let types: Vec<_> = archive.entries().iter().map(|e| e.ty.as_ref().unwrap().to_string()).collect();
    assert_eq!(types, ["bf16[2]", "bf16[1,1]", "i32[1]"]);
    assert_eq!(archive.data("a"), Some(&[0x80, 0x3f, 0, 0x40][..]));
    assert_eq!(archive.data("b"), Some(&[0x40, 0x40][..]));
    assert_eq!(archive.verify_content(None).unwrap().entries, 3);
    assert!(bake(folder.path(), None, true).unwrap().is_empty());
    assert!(matches!(
        bake(folder.path(), Some(I8), true),
        Err(ArchiveError::Conversion { from: F32, to: I8 })
    ));
}

/// The resident memory of this process, in KiB.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Bytes that are read once are those of the file, and leave the memory of the process.
#[cfg(target_os = "linux")]
#[test]
fn bytes_that_are_read_once_do_not_stay() {
    const MIB: usize = 1 << 20;
    let large: Vec<u8> = (0..64 * MIB).map(|i| (i % 251) as u8).collect();
    // The data of the large tensor does not begin at a page.
    let bytes = safetensors(&[("a", Dtype::I8, &[3], &[1, 2, 3]), ("b", Dtype::I8, &[64 * MIB], &large)]);
    let folder = folder(&[("model.safetensors", &bytes)]);
    bake(folder.path(), None, true).unwrap();
    drop(bytes);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let archive = Archive::open(folder.path().join("out.irpa")).unwrap();
    let before = resident();
    assert!(checkpoint.read_once("b", |bytes| bytes == large).unwrap());
    assert_eq!(archive.read_once("b", |bytes| bytes == large).unwrap(), Some(true));
    assert_eq!(archive.read_once("a", <[u8]>::to_vec).unwrap(), Some(vec![1, 2, 3]));
    let once = resident();
    assert!(once < before + 32 * 1024, "{before} KiB became {once} KiB");
    assert!(checkpoint.data("b").unwrap() == large);
    assert!(resident() > once + 48 * 1024, "the bytes of `data` are mapped");
    assert!(matches!(checkpoint.read_once("c", <[u8]>::len), Err(ArchiveError::NoTensor { .. })));
    assert_eq!(archive.read_once("c", <[u8]>::len).unwrap(), None);
}

#[test]
fn a_type_of_no_use_is_copied_only_without_metadata() {
    let bytes = safetensors(&[("ids", Dtype::I64, &[1], &[1, 2, 3, 4, 5, 6, 7, 8])]);
    let folder = folder(&[("model.safetensors", &bytes)]);
    assert!(matches!(bake(folder.path(), None, true), Err(ArchiveError::Dtype { .. })));
    assert!(!folder.path().join("out.irpa").exists());
    bake(folder.path(), None, false).unwrap();
    let archive = Archive::open(folder.path().join("out.irpa")).unwrap();
    assert_eq!(archive.data("ids"), Some(&[1, 2, 3, 4, 5, 6, 7, 8][..]));
    assert_eq!(archive.get("ids").unwrap().ty, None);
    assert_eq!(archive.verify_content(None).unwrap().entries, 0);
}

#[test]
fn the_checkpoint_is_never_overwritten() {
    let bytes = safetensors(&[("w", Dtype::F32, &[2], &F32X2)]);
    let folder = folder(&[("model.safetensors", &bytes)]);
    let file = folder.path().join("model.safetensors");
    let checkpoint = Checkpoint::open(&file).unwrap();
    let error = convert_checkpoint(&checkpoint, &file, ConvertOptions::default()).unwrap_err();
    assert!(matches!(error, ArchiveError::OutputIsInput { .. }));
    assert_eq!(fs::read(file).unwrap(), bytes);
    let index = folder.path().join("model.safetensors.index.json");
    let text = r#"{"weight_map": {"w": "model.safetensors"}}"#;
    fs::write(&index, text).unwrap();
    let checkpoint = Checkpoint::open(&index).unwrap();
    let error = convert_checkpoint(&checkpoint, &index, ConvertOptions::default()).unwrap_err();
    assert!(matches!(error, ArchiveError::OutputIsInput { .. }));
    assert_eq!(fs::read_to_string(index).unwrap(), text);
}
