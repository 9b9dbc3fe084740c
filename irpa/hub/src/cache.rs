//! Reads the folders of the Hugging Face cache. Each model has a folder `models--org--name`. The
//! folder of a model contains the files under their hashes, called blobs, and one snapshot folder
//! per commit with links to the blobs.

use std::fs;
use std::path::{Path, PathBuf};

use errors::WithPath as _;

use crate::select::{INDEX, Selection, select, shards};
use crate::{Hub, HubError, ModelName};

const MODELS: &str = "models--";

/// The largest size in bytes of a file with an access token or with the id of a commit.
const LINE: u64 = 1 << 12;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// Such as `org/name`.
    pub repository: String,
    /// One for each commit.
    pub snapshots: Vec<CachedSnapshot>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedSnapshot {
    /// 40 hexadecimal digits.
    pub commit: String,
    pub revisions: Vec<String>,
    pub path: PathBuf,
    /// The sorted paths of the files, relative to `path`, with `/` between folders.
    pub files: Vec<String>,
    pub bytes: u64,
}

impl CachedSnapshot {
    /// A snapshot folder or a GGUF file; `None` if the snapshot lacks a file.
    fn model(&self, name: &ModelName) -> Result<Option<PathBuf>, HubError> {
        match select(name, &self.files) {
            Ok(Selection::Gguf(file)) => Ok(Some(self.path.join(file))),
            Ok(Selection::Folder { has_index: false, .. }) => Ok(Some(self.path.clone())),
            Ok(Selection::Folder { has_index: true, .. }) => {
                let index = self.path.join(INDEX);
                let index = files::read(&index, files::limits::INDEX)?;
                let is_there = |shard: &String| self.files.contains(shard);
                let is_whole = shards(&index).is_some_and(|shards| shards.iter().all(is_there));
                Ok(is_whole.then(|| self.path.clone()))
            }
            Err(several @ HubError::SeveralFiles { .. }) => Err(several),
            Err(_) => Ok(None),
        }
    }
}

impl Hub {
    /// May not exist yet.
    pub(crate) fn folder(&self, repository: &str) -> PathBuf {
        self.cache.join(format!("{MODELS}{}", repository.replace('/', "--")))
    }

    /// A folder or a GGUF file; `None` if the cache lacks a file.
    pub fn find(&self, name: &ModelName) -> Result<Option<PathBuf>, HubError> {
        let folder = self.folder(&name.repository);
        let found = snapshots(&folder);
        let by_revision = |snapshot: &&CachedSnapshot| {
            snapshot.commit == name.revision()
                || snapshot.revisions.iter().any(|known| known == name.revision())
        };
        let snapshot = match (&name.revision, &found[..]) {
            // Other programs can store a snapshot without storing which branch refers to the
            // snapshot's commit.
            (None, [only]) => Some(only),
            _ => found.iter().find(by_revision),
        };
        snapshot.map_or(Ok(None), |snapshot| snapshot.model(name))
    }

    /// Sorted by name.
    pub fn models(&self) -> Result<Vec<CachedModel>, HubError> {
        if !self.cache.exists() {
            return Ok(Vec::new());
        }
        let folders = fs::read_dir(&self.cache).with_path("read", &self.cache)?;
        let model = |folder: fs::DirEntry| {
            let name = folder.file_name().into_string().ok()?;
            let repository = name.strip_prefix(MODELS)?.replacen("--", "/", 1);
            Some(CachedModel { repository, snapshots: snapshots(&folder.path()) })
        };
        let mut models: Vec<_> = folders.flatten().filter_map(model).collect();
        models.sort_by(|a, b| a.repository.cmp(&b.repository));
        Ok(models)
    }
}

fn snapshots(folder: &Path) -> Vec<CachedSnapshot> {
    let mut refs = Vec::new();
    walk(&folder.join("refs"), "", &mut |name, path| {
        let commit = files::read_text(path, LINE).ok();
        refs.extend(commit.map(|commit| (commit.trim().to_owned(), name.to_owned())));
    });
    let Ok(found) = fs::read_dir(folder.join("snapshots")) else { return Vec::new() };
    let snapshot = |entry: fs::DirEntry| {
        let (commit, path) = (entry.file_name().into_string().ok()?, entry.path());
        let (mut files, mut bytes) = (Vec::new(), 0);
        walk(&path, "", &mut |name, path| {
            // The function skips a link whose blob is missing.
            if let Ok(metadata) = fs::metadata(path) {
                files.push(name.to_owned());
                bytes += metadata.len();
            }
        });
        let of_commit = refs.iter().filter(|(to, _)| *to == commit).map(|(_, name)| name.clone());
        let revisions = of_commit.collect();
        path.is_dir().then_some(CachedSnapshot { commit, revisions, path, files, bytes })
    };
    let mut snapshots: Vec<_> = found.flatten().filter_map(snapshot).collect();
    snapshots.sort_by(|a, b| a.commit.cmp(&b.commit));
    snapshots
}

/// In sorted order, with relative names.
fn walk(folder: &Path, inside: &str, visit: &mut impl FnMut(&str, &Path)) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut entries: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let name = if inside.is_empty() { name.to_owned() } else { format!("{inside}/{name}") };
        // The function does not follow links to folders, because such links could form a cycle. The
        // cache contains no links to folders.
        let is_folder = fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir());
        if is_folder { walk(&path, &name, visit) } else { visit(&name, &path) }
    }
}

pub(crate) fn token(file: &Path) -> Result<String, HubError> {
    Ok(files::read_text(file, LINE)?)
}
