//! Reads the cache of the Hugging Face hub. In the cache, each model has a folder
//! `models--org--name`, and each commit of the model has a snapshot folder. The files in a snapshot
//! are links to blobs (`huggingface_hub`, "Understand caching").

use crate::ArchiveError;
use std::{
    fs,
    path::{Path, PathBuf},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubFolder {
    path: PathBuf,
    snapshots: Vec<PathBuf>,
    main: Option<PathBuf>,
}

impl HubFolder {
    /// If `path` has a subfolder `snapshots`, and a name such as `models--org--name` or another subfolder of
    /// the hub.
    pub fn at(path: &Path) -> Option<Self> {
        let folder = path.join("snapshots");
        let is_named = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("models--"));
        let is_hub =
            folder.is_dir() && (path.join("blobs").is_dir() || path.join("refs").is_dir() || is_named);
        // A folder with a `config.json` is a model that happens to have a folder `snapshots`.
        if !is_hub || path.join("config.json").exists() {
            return None;
        }
        let found = fs::read_dir(&folder).ok()?.flatten().map(|entry| entry.path());
        let mut snapshots: Vec<_> = found.filter(|path| path.is_dir()).collect();
        snapshots.sort();
        // `refs/main` contains a commit, which has 40 digits.
        let main = files::read_text(&path.join("refs/main"), 1 << 10).ok();
        let main = main.map(|commit| folder.join(commit.trim())).filter(|main| snapshots.contains(main));
        Some(Self { path: path.to_owned(), snapshots, main })
    }

    /// The branch `main`, or the only snapshot.
    pub fn snapshot(&self) -> Result<&Path, ArchiveError> {
        match (&self.main, &self.snapshots[..]) {
            (Some(main), _) => Ok(main),
            (None, [only]) => Ok(only),
            _ => Err(self.refused()),
        }
    }

    pub(crate) fn refused(&self) -> ArchiveError {
        let name = |path: &PathBuf| format!("`{}`", path.display());
        let known =
            self.main.iter().chain(self.snapshots.iter().filter(|other| Some(*other) != self.main.as_ref()));
        ArchiveError::Snapshots { path: self.path.clone(), snapshots: known.map(name).collect() }
    }
}
