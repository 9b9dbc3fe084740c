//! [`ModelFiles`] shares the parsed files of a model between all their readers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::{ArchiveError, Checkpoint, Gguf, GgufPart, UnsupportedFormat};

/// A folder, a `config.json`, a GGUF file or an export. Clones share everything that was parsed, so a GGUF
/// file is parsed only once. Only a function that needs a file fails if it cannot be read.
#[derive(Clone, Debug)]
pub struct ModelFiles(Arc<Parsed>);

#[derive(Debug)]
struct Parsed {
    path: PathBuf,
    is_gguf: bool,
    gguf: OnceLock<Gguf>,
    checkpoint: OnceLock<Checkpoint>,
    texts: Mutex<BTreeMap<String, Arc<str>>>,
}

impl ModelFiles {
    /// Parses nothing yet.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let is_gguf = Gguf::is_at(&path);
        let (gguf, checkpoint, texts) = (OnceLock::new(), OnceLock::new(), Mutex::default());
        Self(Arc::new(Parsed { path, is_gguf, gguf, checkpoint, texts }))
    }

    pub fn path(&self) -> &Path {
        &self.0.path
    }

    pub fn is_gguf(&self) -> bool {
        self.0.is_gguf
    }

    /// `None` if the model is no GGUF file.
    pub fn gguf(&self) -> Result<Option<&Gguf>, ArchiveError> {
        if !self.is_gguf() {
            return Ok(None);
        }
        let parsed = &self.0;
        Ok(Some(match parsed.gguf.get() {
            Some(file) => file,
            None => {
                let file = open(&parsed.path)?;
                parsed.gguf.get_or_init(|| file)
            }
        }))
    }

    /// A small file, or what a GGUF file has in its place. `read` runs until it finds the file.
    pub fn text<E>(
        &self,
        name: &str,
        read: impl FnOnce() -> Result<Option<String>, E>,
    ) -> Result<Option<Arc<str>>, E> {
        let known = || self.0.texts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = known().get(name) {
            return Ok(Some(text.clone()));
        }
        let Some(text) = read()? else { return Ok(None) };
        Ok(Some(known().entry(name.to_owned()).or_insert_with(|| text.into()).clone()))
    }

    /// Under the names in the files.
    pub fn checkpoint(&self) -> Result<&Checkpoint, ArchiveError> {
        let parsed = &self.0;
        Ok(match parsed.checkpoint.get() {
            Some(checkpoint) => checkpoint,
            None => {
                let checkpoint = match self.gguf()? {
                    Some(file) => Checkpoint::of_gguf(file),
                    None => Checkpoint::open(&parsed.path)?,
                };
                parsed.checkpoint.get_or_init(|| checkpoint)
            }
        })
    }
}

/// Parses a GGUF file. The error about a part matters more than a tensor whose encoding is unknown.
fn open(path: &Path) -> Result<Gguf, ArchiveError> {
    let opened = Gguf::open(path);
    let part = match &opened {
        Ok(file) => GgufPart::of_keys(file),
        Err(_) => Gguf::open_keys(path).ok().and_then(|keys| GgufPart::of_keys(&keys)),
    };
    let foreign =
        |part| ArchiveError::Foreign { path: path.to_owned(), format: UnsupportedFormat::GgufPart(part) };
    part.map_or(opened, |part| Err(foreign(part)))
}

impl From<&Path> for ModelFiles {
    fn from(path: &Path) -> Self {
        Self::at(path)
    }
}

impl From<&PathBuf> for ModelFiles {
    fn from(path: &PathBuf) -> Self {
        Self::at(path)
    }
}

impl From<PathBuf> for ModelFiles {
    fn from(path: PathBuf) -> Self {
        Self::at(path)
    }
}

impl From<&Self> for ModelFiles {
    fn from(files: &Self) -> Self {
        files.clone()
    }
}
