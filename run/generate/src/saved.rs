//! Stores a sequence in a file: magic bytes, length of the header, header in JSON, state, and a BLAKE3 hash
//! of everything before.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use files::{FileKind, NewFile, limits};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::entry::KeptTensor;
use crate::executor::Executor;
use crate::snapshot::{Snapshot, keeps_all};
use crate::{GenerateError, Network, SavedFault};

/// The magic bytes at the start of the file. The last of the magic bytes is the version of the file format.
const MARK: [u8; 8] = *b"TWSEQ\0\0\x01";
const HASH: usize = 32;

/// Tokens and the state (such as the KV cache) after them, for prompts that begin with these tokens.
#[derive(Clone, Debug)]
pub struct SavedSequence {
    pub(crate) header: Header,
    pub(crate) state: Snapshot,
    path: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    /// A fingerprint that identifies the weights with which the sequence was computed.
    pub model: String,
    pub tokens: Vec<u32>,
    /// The first position of the state that no network call has written.
    pub written: usize,
    /// The name and the number of bytes of each state tensor.
    pub tensors: Vec<(String, usize)>,
    /// Additional data that the caller stored together with the sequence.
    pub notes: Value,
}

impl SavedSequence {
    pub(crate) fn new(header: Header, state: Snapshot) -> Self {
        Self { header, state, path: None }
    }

    /// Returns the tokens of the saved sequence.
    pub fn tokens(&self) -> &[u32] {
        &self.header.tokens
    }

    /// Returns the additional data that the caller stored together with the sequence.
    pub fn notes(&self) -> &Value {
        &self.header.notes
    }

    /// Replaces the additional data that the caller stores together with the sequence.
    #[must_use]
    pub fn with_notes(mut self, notes: Value) -> Self {
        self.header.notes = notes;
        self
    }

    /// Serializes the sequence. [`read`](Self::read) can read a file with the returned content.
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

    /// Writes a file atomically. It is an error to replace a file that is not a saved sequence.
    pub fn write(&self, path: &Path) -> Result<(), GenerateError> {
        Ok(NewFile::write(path, FileKind::SEQUENCE, &self.to_bytes())?)
    }

    /// Reads a saved sequence from a file.
    pub fn read(path: &Path) -> Result<Self, GenerateError> {
        let bytes = files::read(path, limits::SEQUENCE)?;
        let fault = |fault| GenerateError::Saved { path: path.into(), fault };
        let read = parse(&bytes).map_err(fault)?;
        Ok(Self { path: Some(path.into()), ..read })
    }

    /// Creates an error about the file of the saved sequence.
    pub fn refuse(&self, fault: SavedFault) -> GenerateError {
        GenerateError::Saved { path: self.path.clone().unwrap_or_default(), fault }
    }
}

impl KeptTensor {
    /// The name of a saved state tensor, independent of the batch size. It depends on the context length if
    /// positions are not stored separately, or for `is_extended`, as the base of a dynamic rotary embedding
    /// does.
    fn saved_name(&self, context: usize, is_extended: bool) -> String {
        let slots = self.part().filter(|&part| keeps_all(part) && !is_extended);
        let axis = slots.and_then(|part| Some(part.slots(context, self.ty.rank())?.1));
        let extents = self
            .ty
            .shape
            .iter()
            .enumerate()
            .skip(1)
            .map(|(i, extent)| if Some(i) == axis { "positions".to_owned() } else { extent.to_string() });
        format!("{} {}[{}]", self.role, self.ty.element, extents.collect::<Vec<_>>().join(","))
    }

    /// Returns the number of bytes of a state tensor in a saved sequence.
    fn saved_size(&self, state: &Snapshot, context: usize) -> usize {
        self.ranges(0, state.length, state.written, context).iter().map(Range::len).sum()
    }
}

impl<E: Executor> Network<E> {
    /// Creates a saved sequence from tokens and the state after these tokens.
    pub(crate) fn saved(&self, model: &str, tokens: &[u32], state: Snapshot) -> SavedSequence {
        let is_extended = self.is_extended(tokens.len());
        let names = self.state().iter().map(|tensor| tensor.saved_name(self.context(), is_extended));
        let sizes = state.tensors.iter().map(|tensor| tensor.as_ref().map_or(0, |tensor| tensor.len()));
        let header = Header {
            model: model.to_owned(),
            tokens: tokens.to_vec(),
            written: state.written,
            tensors: names.zip(sizes).collect(),
            notes: serde_json::Value::Null,
        };
        SavedSequence::new(header, state)
    }

    /// Checks that a saved sequence belongs to the network, with the weights that `model` identifies.
    pub(crate) fn check_saved(&self, model: &str, saved: &SavedSequence) -> Result<(), GenerateError> {
        let (header, context) = (&saved.header, self.context());
        let refuse = |fault| Err(saved.refuse(fault));
        if header.model != model {
            return refuse(SavedFault::Model { found: header.model.clone(), expected: model.to_owned() });
        }
        if header.tokens.len() > context {
            return refuse(SavedFault::Length { found: header.tokens.len(), expected: context });
        }
        let none = || "nothing".to_owned();
        let is_extended = self.is_extended(header.tokens.len());
        let own = |tensor: &KeptTensor| {
            (tensor.saved_name(context, is_extended), tensor.saved_size(&saved.state, context))
        };
        let own: Vec<_> = self.state().iter().map(own).collect();
        for i in 0..own.len().max(header.tensors.len()) {
            let (found, expected) = (header.tensors.get(i), own.get(i));
            if found != expected {
                let named = |tensor: &(String, usize)| format!("{} of {} bytes", tensor.0, tensor.1);
                let [found, expected] = [found, expected].map(|tensor| tensor.map_or_else(none, named));
                return refuse(SavedFault::State { found, expected });
            }
        }
        self.check(&header.tokens, 0)
    }
}

fn parse(bytes: &[u8]) -> Result<SavedSequence, SavedFault> {
    let Some((mark, rest)) = bytes.split_first_chunk::<8>() else { return Err(SavedFault::Kind) };
    match mark {
        mark if mark[..7] != MARK[..7] => return Err(SavedFault::Kind),
        mark if *mark != MARK => return Err(SavedFault::Version { found: mark[7], expected: MARK[7] }),
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
    if data.is_empty() { Ok(SavedSequence::new(header, state)) } else { Err(SavedFault::Damaged) }
}
