//! What was measured, on disk: a file for each product, in a folder for each machine.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use errors::{FileError, WithPath as _};
use serde::{Deserialize, Serialize};
use targets::{Target, Tiling, Tuning};

use super::trial::Verdict;
use crate::files::NewFile;

/// Changes when the meaning of a record does.
const FORM: &str = "tracewright tuning 1";

/// Ends the name of a record's file.
const EXTENSION: &str = "tuning";

/// What was measured on a machine, and where it is kept.
///
/// A record is a file of two lines: its hash and itself. It appears whole, under its own name, so that runs beside each
/// other and runs that are killed leave records or none.
pub struct TuningCache {
    folder: PathBuf,
}

/// What was measured of a product.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The name by which kernels know it.
    pub product: String,
    /// What all others are compared with.
    pub usual: Tiling,
    /// What was tried.
    pub tried: Vec<Tried>,
}

/// A way to cut a product, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tried {
    /// The way.
    pub tiling: Tiling,
    /// What came of it.
    pub verdict: Verdict,
}

/// What a cache holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Known {
    /// By the product's name.
    pub records: BTreeMap<String, Record>,
    /// Files that hold no record: they were cut off, or changed. They are not used.
    pub damaged: Vec<PathBuf>,
}

impl Record {
    /// Of a product of which nothing was tried.
    pub fn new(product: &str, usual: Tiling) -> Self {
        Self { product: product.into(), usual, tried: Vec::new() }
    }

    /// The fastest right one, and its share of the usual time; nothing if none is faster than what is usual.
    pub fn best(&self) -> Option<(Tiling, f64)> {
        let faster = self.tried.iter().filter_map(|tried| Some((tried.tiling, tried.verdict.faster()?)));
        faster.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Whether a way needs no trial.
    pub fn knows(&self, tiling: Tiling) -> bool {
        tiling == self.usual || self.tried.iter().any(|tried| tried.tiling == tiling)
    }
}

impl Known {
    /// What kernels should do.
    pub fn tuning(&self) -> Tuning {
        let best = |record: &Record| Some((record.product.clone(), record.best()?.0));
        Tuning { products: self.records.values().filter_map(best).collect() }
    }
}

impl TuningCache {
    /// That of a target whose features are known, on this machine, with this compiler.
    pub fn new(cache: &Path, target: &Target, compiler: &str) -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let mut hasher = blake3::Hasher::new();
        let version = env!("CARGO_PKG_VERSION");
        for part in [FORM, version, compiler, target.architecture(), &threads.to_string()]
            .into_iter()
            .chain(target.features.iter().flatten().map(String::as_str))
        {
            // With its length in front, no part can pass for two.
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        Self { folder: cache.join("tuning").join(&hasher.finalize().to_hex()[..32]) }
    }

    /// Where the records are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// All records.
    ///
    /// # Errors
    /// If a file is there and cannot be read.
    pub fn read(&self) -> Result<Known, FileError> {
        let mut known = Known::default();
        let files = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(known),
            files => files.with_path("read", &self.folder)?,
        };
        for file in files {
            let path = file.with_path("read", &self.folder)?.path();
            if path.extension().is_none_or(|extension| extension != EXTENSION) {
                continue; // What another run is writing.
            }
            match record(&fs::read(&path).with_path("read", &path)?) {
                Some(record) => drop(known.records.insert(record.product.clone(), record)),
                None => known.damaged.push(path),
            }
        }
        known.damaged.sort();
        Ok(known)
    }

    /// Keeps a record, in place of the one of its product.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, record: &Record) -> Result<(), FileError> {
        fs::create_dir_all(&self.folder).with_path("create", &self.folder)?;
        let path = self.folder.join(&record.product).with_extension(EXTENSION);
        let json = serde_json::to_string(record).unwrap_or_default();
        NewFile::write(&path, format!("{}\n{json}\n", blake3::hash(json.as_bytes())).as_bytes())
    }
}

/// The record in a file, if it is as it was written.
fn record(bytes: &[u8]) -> Option<Record> {
    let (hash, json) = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?.split_once('\n')?;
    let written = blake3::hash(json.as_bytes()).to_hex().as_str() == hash;
    written.then(|| serde_json::from_str(json).ok())?
}
