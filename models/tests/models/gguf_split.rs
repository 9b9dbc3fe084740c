//! Models that are split into several GGUF files, and what is wrong with a part.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs;
use std::path::{Path, PathBuf};

use irpa::{ArchiveError, Checkpoint, Gguf};

use crate::gguf::gguf_parts::{GgufParts, I32, TEXT, text};

const U16: u32 = 2;
const PARTS: u16 = 3;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/gguf")
}

fn path_of(folder: &Path, number: u16) -> PathBuf {
    folder.join(format!("model-{number:05}-of-{PARTS:05}.gguf"))
}

/// The parts of a fixture as `llama-gguf-split --split-max-tensors` writes them: all keys are in the first, and the keys about
/// parts come last (`tools/gguf-split/gguf-split.cpp`).
fn split() -> (GgufParts, Vec<GgufParts>) {
    let whole = GgufParts::read(&fixtures().join("llama.gguf"));
    let most = whole.tensors.len().div_ceil(PARTS.into());
    let part = |(number, tensors): (usize, &[_])| {
        let keys = if number == 0 { whole.keys.clone() } else { Vec::new() };
        let mut part = GgufParts { keys, tensors: tensors.to_vec() };
        part.set("split.no", U16, (number as u16).to_le_bytes().to_vec());
        part.set("split.count", U16, PARTS.to_le_bytes().to_vec());
        part.set("split.tensors.count", I32, (whole.tensors.len() as i32).to_le_bytes().to_vec());
        part
    };
    let parts = whole.tensors.chunks(most).enumerate().map(part).collect();
    (whole, parts)
}

fn write(parts: &[GgufParts]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    (1..).zip(parts).for_each(|(number, part)| part.write(&path_of(folder.path(), number)));
    folder
}

/// The path of the file that the error names, and the problem.
fn problem(path: &Path) -> (PathBuf, String) {
    match Gguf::open(path) {
        Err(ArchiveError::Gguf { path, problems }) => {
            (path, problems.iter().map(ToString::to_string).collect())
        }
        other => panic!("{other:?}"),
    }
}

/// Every tensor of a split model has the bytes that it has in one file, and the model has the same configuration.
fn assert_equal(part: &Path, whole: &Path) {
    let [found, expected] = [part, whole].map(|path| Checkpoint::open(path).unwrap());
    assert_eq!(found.files().count(), usize::from(PARTS));
    assert_eq!(found.tensors().count(), expected.tensors().count());
    for tensor in expected.tensors() {
        let same = found.get(&tensor.name).unwrap();
        assert_eq!((&same.shape, same.stored), (&tensor.shape, tensor.stored));
        let [bytes, expected] = [&found, &expected].map(|file| file.data(&tensor.name).unwrap());
        assert!(bytes == expected, "{}", tensor.name);
    }
    let [found, expected] = [part, whole].map(|path| tracewright_models::gguf::config_json(path).unwrap());
    assert_eq!(found, expected);
}

#[test]
fn any_part_gives_the_whole_model() {
    let (whole, parts) = split();
    let folder = write(&parts);
    let one = folder.path().join("whole.gguf");
    whole.write(&one);
    for number in 1..=PARTS {
        assert_equal(&path_of(folder.path(), number), &one);
    }
}

/// Parts that the package `gguf` wrote (`tests/oracle/gguf_split.py`).
#[test]
fn parts_of_another_writer() {
    assert_equal(&fixtures().join("parts/split-00002-of-00003.gguf"), &fixtures().join("q4_0.gguf"));
}

#[test]
fn a_part_that_is_missing_misplaced_or_of_another_model_is_named() {
    let (_, parts) = split();
    let (first, second, third) = (1, 2, 3);
    let check = |edit: &dyn Fn(&mut Vec<GgufParts>, &Path), opened: u16, named: u16, words: &str| {
        let mut parts = parts.clone();
        let folder = tempfile::tempdir().unwrap();
        edit(&mut parts, folder.path());
        (1..).zip(&parts).for_each(|(number, part)| part.write(&path_of(folder.path(), number)));
        edit(&mut parts, folder.path());
        let (path, said) = problem(&path_of(folder.path(), opened));
        assert_eq!(path, path_of(folder.path(), named), "{said}");
        assert!(said.contains(words), "{said}");
    };
    let removes =
        |number| move |_: &mut Vec<GgufParts>, folder: &Path| _ = fs::remove_file(path_of(folder, number));
    check(&removes(second), first, second, "the file is missing, which is part 2 of 3 of the model");
    check(&removes(first), third, first, "the file is missing, which is part 1 of 3 of the model");
    let set = |number: usize, key: &'static str, kind, value: Vec<u8>| {
        move |parts: &mut Vec<GgufParts>, _: &Path| parts[number - 1].set(key, kind, value.clone())
    };
    // The second and the third are exchanged.
    check(&set(2, "split.no", U16, vec![2, 0]), first, second, "`split.no` is 2, expected 1");
    check(&set(3, "split.count", U16, vec![4, 0]), first, third, "`split.count` is 4, expected 3");
    let words = "`split.tensors.count` is 7, expected";
    check(&set(2, "split.tensors.count", I32, vec![7, 0, 0, 0]), first, second, words);
    let words = "`general.name` has another value than in the first part";
    check(&set(3, "general.name", TEXT, text("Another")), second, third, words);
    let twice = |parts: &mut Vec<GgufParts>, _: &Path| parts[2].tensors[0] = parts[0].tensors[0].clone();
    check(&twice, first, third, "occurs twice");
    let fewer = |parts: &mut Vec<GgufParts>, _: &Path| _ = parts[2].tensors.pop();
    check(&fewer, first, first, "all parts of the model together have");
}

#[test]
fn a_part_needs_its_name() {
    let (_, parts) = split();
    let folder = write(&parts);
    let other = folder.path().join("renamed.gguf");
    fs::rename(path_of(folder.path(), 2), &other).unwrap();
    let (path, said) = problem(&other);
    assert_eq!(path, other);
    assert!(said.contains("part 2 of the model") && said.contains("`-00002-of-00003.gguf`"), "{said}");
}
