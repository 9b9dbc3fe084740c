//! Stores the tuner's measurements on disk. Each machine has a folder, which contains a file for
//! each network and for each fused operation. Every command that builds a network reads the files
//! with measurements. The tuner, which is in the crate `instruments`, writes the files.

#![allow(missing_docs, reason = "the names of fields and variants explain them")]

mod settings;
mod source;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::iter::once;
use std::path::{Path, PathBuf};
use std::thread;

use errors::{FileError, WithPath as _};
use files::{FileKind, NewFile, limits};
use serde::{Deserialize, Serialize};
use targets::{Target, Tiling, Tuning};

pub use settings::BuildSettings;
pub use source::{TuningSource, Tunings, network_name};

/// Change it when the meaning of a file changes.
const FORM: &str = "tracewright tuning 2";

/// With the measurements of all machines.
const FOLDER: &str = "tuning";

const EXTENSION: &str = "tuning";

/// A setting's time over the default's, at most. It holds for the shortest times and for the median of pairs,
/// and three quarters of pairs must be below 1. Shortest times count because other processes only make runs
/// longer.
pub const FASTER: f64 = 0.97;

/// The result of a trial, which measures one setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Correct results. Ratios are times with the setting over times with the defaults.
    Ratio {
        median: f64,
        /// The upper quartile of the ratios of all pairs of measurements.
        upper_quartile: f64,
        /// Shortest times of both.
        shortest: f64,
    },
    Wrong(String),
    Refused(String),
}

impl Verdict {
    /// The ratio, if the setting is clearly faster than the defaults.
    pub fn faster(&self) -> Option<f64> {
        match *self {
            Self::Ratio { median, upper_quartile, shortest } => {
                Some(median.max(shortest)).filter(|&share| share <= FASTER && upper_quartile < 1.0)
            }
            Self::Wrong(_) | Self::Refused(_) => None,
        }
    }
}

/// The tuner's measurements of one machine.
///
/// A record has two lines: the hash of the content, and the content. It is renamed into place, so a killed or
/// parallel tuner never leaves an incomplete one.
pub struct TuningCache {
    folder: PathBuf,
}

/// Measurements of a fused operation with [`Tiling`]s, or of a network with [`BuildSettings`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record<Way = Tiling> {
    /// The name of the fused operation, or the name of the network.
    pub name: String,
    /// The default settings, to which all times are relative.
    pub usual: Way,
    pub tried: Vec<TrialRecord<Way>>,
}

/// Contains a setting, and the result of the trial that measured this setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialRecord<Way = Tiling> {
    pub way: Way,
    pub verdict: Verdict,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Kernel(Record<Tiling>),
    Network(Record<BuildSettings>),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct TuningDb {
    /// The records of fused operations, by the name of the fused operation.
    pub kernels: BTreeMap<String, Record<Tiling>>,
    /// The records of networks, by the name of the network.
    pub networks: BTreeMap<String, Record<BuildSettings>>,
    /// Truncated or changed files, which are ignored.
    pub damaged: Vec<PathBuf>,
}

impl<Way: Clone + PartialEq> Record<Way> {
    pub fn new(name: &str, usual: Way) -> Self {
        Self { name: name.into(), usual, tried: Vec::new() }
    }

    /// Or an empty record: measurements with other defaults are not comparable.
    pub fn known(records: &BTreeMap<String, Self>, name: &str, usual: Way) -> Self {
        let found = records.get(name).filter(|record| record.usual == usual);
        found.cloned().unwrap_or_else(|| Self::new(name, usual))
    }

    /// With its time over the default's; `None` if none is faster.
    pub fn best(&self) -> Option<(&Way, f64)> {
        let faster = self.tried.iter().filter_map(|tried| Some((&tried.way, tried.verdict.faster()?)));
        faster.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Those with correct results; perhaps the default.
    pub fn fastest(&self) -> &Way {
        self.best().map_or(&self.usual, |(best, _)| best)
    }

    /// Returns the default settings and all settings that were measured.
    pub fn seen(&self) -> impl Iterator<Item = &Way> {
        once(&self.usual).chain(self.tried.iter().map(|tried| &tried.way))
    }
}

impl TuningDb {
    /// Without a name, only those of kernels.
    pub fn tuning(&self, network: Option<&str>) -> Tuning {
        let best = |record: &Record| Some((record.name.clone(), *record.best()?.0));
        let kernels = self.kernels.values().filter_map(best).collect();
        match network.and_then(|name| self.networks.get(name)?.best()) {
            Some((BuildSettings { chunk, flags }, _)) => {
                Tuning { kernels, chunk: Some(*chunk), flags: flags.clone() }
            }
            None => Tuning { kernels, ..Tuning::default() },
        }
    }
}

impl TuningCache {
    /// For this machine; the features of the target's processor must be known.
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
        Self { folder: cache.join(FOLDER).join(&hasher.finalize().to_hex()[..32]) }
    }

    pub fn exists(cache: &Path) -> bool {
        cache.join(FOLDER).is_dir()
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Reads all records.
    ///
    /// # Errors
    /// Returns an error if the folder or a file in the folder exists but cannot be read.
    pub fn read(&self) -> Result<TuningDb, FileError> {
        let mut known = TuningDb::default();
        let files = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(known),
            files => files.with_path("read", &self.folder)?,
        };
        for file in files {
            let path = file.with_path("read", &self.folder)?.path();
            if path.extension().is_none_or(|extension| extension != EXTENSION) {
                continue; // What another run is writing.
            }
            let bytes = match files::read(&path, limits::TUNING_RECORD) {
                // No record is so large, and none is a folder or a pipe.
                Err(FileError { source, .. })
                    if matches!(
                        source.kind(),
                        io::ErrorKind::FileTooLarge
                            | io::ErrorKind::InvalidInput
                            | io::ErrorKind::InvalidData
                    ) =>
                {
                    Vec::new()
                }
                bytes => bytes?,
            };
            match record(&bytes) {
                Some(Written::Kernel(record)) => drop(known.kernels.insert(record.name.clone(), record)),
                Some(Written::Network(record)) => drop(known.networks.insert(record.name.clone(), record)),
                None => known.damaged.push(path),
            }
        }
        known.damaged.sort();
        Ok(known)
    }

    /// Writes a record to disk, and replaces an existing record with the same name.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write<Way: Serialize>(&self, record: &Record<Way>) -> Result<(), FileError> {
        fs::create_dir_all(&self.folder).with_path("create", &self.folder)?;
        let path = self.folder.join(&record.name).with_extension(EXTENSION);
        let json = serde_json::to_string(record).unwrap_or_default();
        NewFile::write(
            &path,
            FileKind::CACHED,
            format!("{}\n{json}\n", blake3::hash(json.as_bytes())).as_bytes(),
        )
    }
}

/// `None` if the hash is wrong or the content invalid.
fn record(bytes: &[u8]) -> Option<Written> {
    let (hash, json) = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?.split_once('\n')?;
    let written = blake3::hash(json.as_bytes()).to_hex().as_str() == hash;
    written.then(|| serde_json::from_str(json).ok())?
}

/// The reason why a file with tuned settings cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TuningFileError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("`{}` does not contain tuning results; expected the same JSON as the key `tuning` of a manifest", .path.display())]
    Syntax { path: PathBuf, source: serde_json::Error },
}

/// In the format of the key `tuning` in a manifest.
///
/// # Errors
/// Returns an error if the file cannot be read or does not contain valid settings.
pub fn read_tuning(path: &Path) -> Result<Tuning, TuningFileError> {
    let bytes = files::read(path, limits::CONFIG)?;
    let tuning = serde_json::from_slice(files::unmarked(&bytes));
    tuning.map_err(|source| TuningFileError::Syntax { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::thread;

    use super::*;

    fn tiling(n: usize) -> Tiling {
        let count = NonZeroUsize::new(n + 1).unwrap();
        Tiling { parts: count, rows: count, panels: count, ahead: n }
    }

    fn ratio(median: f64, upper_quartile: f64, shortest: f64) -> Verdict {
        Verdict::Ratio { median, upper_quartile, shortest }
    }

    /// The last of `count` trials is the fastest.
    fn tried(product: &str, count: usize) -> Record {
        let verdict = |i: usize| ratio(0.9 / i as f64, 0.9, 0.1);
        let tried = (1..=count).map(|i| TrialRecord { way: tiling(i), verdict: verdict(i) });
        Record { tried: tried.collect(), ..Record::new(product, tiling(0)) }
    }

    fn target(features: &[&str]) -> Target {
        let features = features.iter().map(|&feature| feature.to_owned()).collect();
        Target { features: Some(features), ..Target::processor("generic") }
    }

    #[test]
    fn what_was_measured_is_for_its_machine_and_compiler_alone() {
        let folder = tempfile::tempdir().unwrap();
        let cache = |features, compiler| TuningCache::new(folder.path(), &target(features), compiler);
        assert!(!TuningCache::exists(folder.path()));
        let own = cache(&["avx2", "fma"], "3.13");
        own.write(&tried("product", 3)).unwrap();
        assert!(TuningCache::exists(folder.path()));
        let again = cache(&["avx2", "fma"], "3.13").read().unwrap();
        let tuning = again.tuning(Some("network"));
        assert_eq!(tuning.kernels, BTreeMap::from([("product".to_owned(), tiling(3))]));
        for other in [cache(&["avx2"], "3.13"), cache(&["avx2fma"], "3.13"), cache(&["avx2", "fma"], "3.14")]
        {
            assert_eq!(other.read().unwrap(), TuningDb::default());
        }
    }

    #[test]
    fn a_damaged_record_is_told_and_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let cache = TuningCache::new(folder.path(), &target(&[]), "3.13");
        cache.write(&tried("whole", 1)).unwrap();
        cache.write(&tried("spoiled", 2)).unwrap();
        let path = cache.folder().join("spoiled").with_extension(EXTENSION);
        let bytes = fs::read(&path).unwrap();
        let check = |spoiled: &[u8]| {
            fs::write(&path, spoiled).unwrap();
            let known = cache.read().unwrap();
            assert_eq!(known.damaged, std::slice::from_ref(&path));
            assert_eq!(known.kernels.keys().collect::<Vec<_>>(), ["whole"]);
        };
        (0..bytes.len()).for_each(|length| check(&bytes[..length]));
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            check(&flipped);
        }
        // Larger than any record is, and without an end.
        fs::File::create(&path).unwrap().set_len(limits::TUNING_RECORD + 1).unwrap();
        assert_eq!(cache.read().unwrap().damaged, std::slice::from_ref(&path));
        fs::write(&path, &bytes).unwrap();
        let endless = path.with_file_name("endless").with_extension(EXTENSION);
        fs::create_dir(&endless).unwrap();
        assert_eq!(cache.read().unwrap().damaged, std::slice::from_ref(&endless));
        fs::remove_dir(&endless).unwrap();
        // Whoever measures again replaces it.
        cache.write(&tried("spoiled", 2)).unwrap();
        assert_eq!(cache.read().unwrap().kernels.len(), 2);
    }

    #[test]
    fn who_reads_beside_writers_finds_whole_records() {
        let folder = tempfile::tempdir().unwrap();
        let cache = TuningCache::new(folder.path(), &target(&[]), "3.13");
        let writer = |first: usize| {
            let cache = &cache;
            move || {
                for count in first..first + 20 {
                    cache.write(&tried("shared", count)).unwrap();
                    cache.write(&tried(&format!("own{first}"), count)).unwrap();
                }
            }
        };
        thread::scope(|scope| {
            let writers: Vec<_> = (1..5).map(|first| scope.spawn(writer(first))).collect();
            while writers.iter().any(|writer| !writer.is_finished()) {
                let known = cache.read().unwrap();
                assert_eq!(known.damaged, Vec::<PathBuf>::new());
                for (product, record) in &known.kernels {
                    assert_eq!(*record, tried(product, record.tried.len()));
                }
            }
        });
        // What is there in the end is what somebody wrote last, and nothing else.
        let known = cache.read().unwrap();
        assert_eq!(known.kernels.len(), 5);
        assert_eq!(fs::read_dir(cache.folder()).unwrap().count(), 5);
    }

    #[test]
    fn what_is_wrong_or_hardly_faster_is_not_the_fastest() {
        let verdicts = [
            Verdict::Wrong("number 3 is 0, expected 1".into()),
            Verdict::Refused("vectors are too large".into()),
            ratio(0.98, 0.99, 0.5),
            // Neighbours were busy while the others ran.
            ratio(0.5, 0.9, 0.98),
            ratio(0.5, 1.1, 0.5),
        ];
        let tried = verdicts.into_iter().enumerate();
        let tried = tried.map(|(i, verdict)| TrialRecord { way: tiling(i + 1), verdict }).collect();
        let mut record = Record { tried, ..Record::new("product", tiling(0)) };
        assert_eq!(record.best(), None);
        let verdict = ratio(0.97, 0.99, 0.96);
        record.tried.push(TrialRecord { way: tiling(9), verdict });
        assert_eq!(record.best(), Some((&tiling(9), 0.97)));
    }
}
