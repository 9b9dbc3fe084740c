//! Joins the parts of a model that is split into several GGUF files, as `llama-gguf-split` of llama.cpp writes them:
//! `NAME-00001-of-00003.gguf` and so on. The first part has the keys of the model.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::ArchiveError;
use crate::error::GgufProblem;
use crate::gguf::{Gguf, GgufValue};

/// The keys of each part (`LLM_KV_SPLIT_…` in `src/llama-arch.cpp`).
const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// The largest number that the names of parts have room for.
const MOST: i128 = 99_999;

fn refused(path: &Path, problem: GgufProblem) -> ArchiveError {
    ArchiveError::Gguf { path: path.into(), problems: vec![problem] }
}

fn integer(part: &Gguf, key: &'static str) -> Option<i128> {
    part.get(key).map(|value| if let GgufValue::Integer(integer) = value { integer } else { -1 })
}

/// The name of a file without the number of its part and that of all parts, and these two numbers.
fn parts_of_name(path: &Path) -> Option<(&str, i128, i128)> {
    let (name, count) = path.file_name()?.to_str()?.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (name, number) = name.rsplit_once('-')?;
    let number_of = |text: &str| (text.len() == 5).then(|| text.parse::<u32>().ok().map(i128::from))?;
    Some((name, number_of(number)?, number_of(count)?))
}

fn path_of(path: &Path, name: &str, number: i128, count: i128) -> PathBuf {
    path.with_file_name(format!("{name}-{number:05}-of-{count:05}.gguf"))
}

impl Gguf {
    /// Reads everything except the tensors' data. If the file is a part of a model, the function also reads all other
    /// parts, which lie beside it. The error lists all invalid keys and tensors.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ArchiveError> {
        whole(Self::open_part(path.as_ref())?)
    }

    /// Reads only the metadata's keys, in the first part if the model is split; no tensors.
    pub fn open_keys(path: impl AsRef<Path>) -> Result<Self, ArchiveError> {
        let path = path.as_ref();
        Self::open_part_keys(first_part(path).as_deref().unwrap_or(path))
    }
}

/// The path of the first part, if `path` has the name of another one.
fn first_part(path: &Path) -> Option<PathBuf> {
    let (name, number, count) = parts_of_name(path)?;
    let first = path_of(path, name, 1, count);
    (number != 1 && first.is_file()).then_some(first)
}

/// The whole model of which `part` is a part; `part` itself if the model is in one file.
fn whole(part: Gguf) -> Result<Gguf, ArchiveError> {
    let path = part.path().to_owned();
    let count = match integer(&part, COUNT) {
        None | Some(0 | 1) => return Ok(part),
        Some(count @ 2..=MOST) => count,
        Some(count) => return Err(refused(&path, GgufProblem::SplitCount { count, most: MOST })),
    };
    let number = integer(&part, NUMBER).unwrap_or(-1) + 1;
    let named = parts_of_name(&path).filter(|&(_, of_name, all)| (of_name, all) == (number, count));
    let Some((name, ..)) = named else {
        return Err(refused(&path, GgufProblem::SplitName { number, count }));
    };
    let mut given = Some(part);
    let mut parts = Vec::new();
    for other in 1..=count {
        let found = path_of(&path, name, other, count);
        parts.push(match given.take_if(|_| other == number) {
            Some(part) => part,
            None if found.is_file() => Gguf::open_part(&found)?,
            None => return Err(refused(&found, GgufProblem::SplitMissing { number: other, count })),
        });
    }
    joined(parts)
}

fn joined(parts: Vec<Gguf>) -> Result<Gguf, ArchiveError> {
    let count = parts.len() as i128;
    let mut names = BTreeSet::new();
    let mut all = parts.into_iter();
    let Some(mut whole) = all.next() else { unreachable!("a split model has at least two parts") };
    names.extend(whole.tensors().iter().map(|tensor| tensor.name.clone()));
    let tensors = integer(&whole, TENSORS);
    for (number, part) in (1..).zip(all) {
        for (key, expected) in [(NUMBER, Some(number)), (COUNT, Some(count)), (TENSORS, tensors)] {
            let found = integer(&part, key);
            if found != expected {
                let (found, expected) = (found.unwrap_or(-1), expected.unwrap_or(-1));
                return Err(refused(part.path(), GgufProblem::SplitKey { key, found, expected }));
            }
        }
        let differs = |key: &&str| ![NUMBER, COUNT, TENSORS].contains(key) && part.get(key) != whole.get(key);
        if let Some(key) = part.keys().find(differs) {
            return Err(refused(part.path(), GgufProblem::SplitOther { key: key.to_owned() }));
        }
        if let Some(tensor) = part.tensors().iter().find(|tensor| !names.insert(tensor.name.clone())) {
            return Err(refused(part.path(), GgufProblem::TensorTwice { name: tensor.name.clone() }));
        }
        whole.add(part);
    }
    let found = whole.tensors().len() as i128;
    match tensors.filter(|&expected| expected != found) {
        Some(expected) => Err(refused(whole.path(), GgufProblem::SplitTensors { found, expected })),
        None => Ok(whole),
    }
}
