//! A sequence and its state in a file.
//!
//! The file has a mark, the length of a header, the header in JSON, the bytes of the state, and the BLAKE3 hash of all that.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use files::{FileKind, NewFile, limits};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::GenerateError;
use crate::snapshot::Snapshot;

/// What the file begins with; the last byte is the version.
const MARK: [u8; 8] = *b"TWSEQ\0\0\x01";
const HASH: usize = 32;

/// The tokens that a row has seen, and its state: a text that begins with them need not compute them again.
#[derive(Clone, Debug)]
pub struct SavedSequence {
    pub(crate) header: Header,
    pub(crate) state: Snapshot,
    path: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    /// What names the weights.
    pub model: String,
    pub tokens: Vec<u32>,
    /// The position after the last one written.
    pub written: usize,
    /// Each tensor of state, and its bytes.
    pub tensors: Vec<(String, usize)>,
    /// What the writer wants to remember.
    pub notes: Value,
}

/// Why a file is not the saved sequence that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SavedFault {
    /// It is another kind of file.
    #[error("is not a saved sequence, expected a file that Tracewright wrote")]
    Kind,
    /// It has another version of the format.
    #[error("has version {0} of the format, expected {expected}", expected = MARK[7])]
    Version(u8),
    /// Its bytes are not those that were written.
    #[error("is damaged, expected the bytes that were written")]
    Damaged,
    /// It belongs to other weights, or to the same in another format.
    #[error("belongs to the weights `{found}`, expected `{expected}`")]
    Model {
        /// The fingerprint in the file.
        found: String,
        /// The fingerprint of the network.
        expected: String,
    },
    /// The network keeps other state.
    #[error("has the state `{found}`, expected `{expected}`")]
    State {
        /// The first tensor in the file that differs.
        found: String,
        /// What the network has in its place.
        expected: String,
    },
    /// It has a text, and no conversation.
    #[error("is not a conversation, expected messages beside the tokens")]
    NoConversation,
    /// It has more tokens than the network takes.
    #[error("has {found} tokens, expected at most {expected}")]
    Length {
        /// The tokens in the file.
        found: usize,
        /// The context of the network.
        expected: usize,
    },
}

impl SavedSequence {
    pub(crate) fn new(header: Header, state: Snapshot) -> Self {
        Self { header, state, path: None }
    }

    /// The tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.header.tokens
    }

    /// What the writer wanted to remember.
    pub fn notes(&self) -> &Value {
        &self.header.notes
    }

    /// The sequence with other notes.
    #[must_use]
    pub fn with_notes(mut self, notes: Value) -> Self {
        self.header.notes = notes;
        self
    }

    /// The content of a file that [`read`](Self::read) reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Header { model, tokens, written, tensors, notes } = &self.header;
        let header = json!({
            "model": model, "tokens": tokens, "written": written, "tensors": tensors, "notes": notes,
        });
        let header = header.to_string();
        let mut bytes = MARK.to_vec();
        bytes.extend((header.len() as u64).to_le_bytes());
        bytes.extend(header.as_bytes());
        self.state.tensors.iter().flatten().for_each(|tensor| bytes.extend_from_slice(tensor));
        bytes.extend(blake3::hash(&bytes).as_bytes());
        bytes
    }

    /// Writes a file, which appears whole or not at all.
    ///
    /// # Errors
    /// If it cannot be written, or would replace a file of another kind.
    pub fn write(&self, path: &Path) -> Result<(), GenerateError> {
        Ok(NewFile::write(path, FileKind::SEQUENCE, &self.to_bytes())?)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, is another kind of file, or is damaged.
    pub fn read(path: &Path) -> Result<Self, GenerateError> {
        let bytes = files::read(path, limits::SEQUENCE)?;
        let fault = |fault| GenerateError::Saved { path: path.into(), fault };
        let read = parse(&bytes).map_err(fault)?;
        Ok(Self { path: Some(path.into()), ..read })
    }

    /// An error about this sequence.
    pub fn refuse(&self, fault: SavedFault) -> GenerateError {
        GenerateError::Saved { path: self.path.clone().unwrap_or_default(), fault }
    }
}

fn parse(bytes: &[u8]) -> Result<SavedSequence, SavedFault> {
    let Some((mark, rest)) = bytes.split_first_chunk::<8>() else { return Err(SavedFault::Kind) };
    match mark {
        mark if mark[..7] != MARK[..7] => return Err(SavedFault::Kind),
        mark if *mark != MARK => return Err(SavedFault::Version(mark[7])),
        _ => {}
    }
    let damaged = || SavedFault::Damaged;
    let (hashed, hash) = bytes.split_last_chunk::<HASH>().ok_or_else(damaged)?;
    if blake3::hash(hashed).as_bytes() != hash || rest.len() < 8 + HASH {
        return Err(SavedFault::Damaged);
    }
    let (length, rest) = hashed[8..].split_first_chunk().ok_or_else(damaged)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| SavedFault::Damaged)?;
    let (header, mut data) = rest.split_at_checked(length).ok_or_else(damaged)?;
    let header: Header = serde_json::from_slice(header).map_err(|_| SavedFault::Damaged)?;
    let mut tensors = Vec::with_capacity(header.tensors.len());
    for &(_, size) in &header.tensors {
        let (tensor, others) = data.split_at_checked(size).ok_or_else(damaged)?;
        tensors.push(Some(Arc::new(tensor.to_vec())));
        data = others;
    }
    let state = Snapshot { length: header.tokens.len(), written: header.written, tensors };
    match data.is_empty() {
        true => Ok(SavedSequence::new(header, state)),
        false => Err(SavedFault::Damaged),
    }
}
