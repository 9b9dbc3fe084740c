//! Finds the files with weights in a folder. If Tracewright cannot read the folder, the error
//! explains the reason.

use crate::unsupported::{INDEX, SINGLE, list};
use crate::{ArchiveError, HubFolder, UnsupportedFormat};
use files::{StandIn, is_there};
use safetensors::{SafeTensorError, tensor::Metadata};
use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

pub(crate) struct WeightFiles {
    /// The single safetensors file, or the index of several.
    pub file: PathBuf,
    /// Ignored beside a single safetensors file.
    pub index: Option<PathBuf>,
}

impl WeightFiles {
    /// If there are several, prefers the one that Hugging Face transformers does.
    pub fn find(folder: &Path) -> Result<Self, ArchiveError> {
        let [single, index] =
            [SINGLE, INDEX].map(|name| Some(folder.join(name)).filter(|path| is_there(path)));
        match (single, index) {
            (Some(file), index) => return Ok(Self { file, index }),
            (None, Some(file)) => return Ok(Self { file, index: None }),
            (None, None) => {}
        }
        let path = folder.to_owned();
        if let Some(hub) = HubFolder::at(folder) {
            return Err(hub.refused());
        }
        if let Some(format) = UnsupportedFormat::of_folder(folder)? {
            return Err(ArchiveError::Foreign { path, format });
        }
        let found = list(folder)?.into_iter();
        let found =
            found.filter(|name| Path::new(name).extension() == Some(OsStr::new("safetensors"))).collect();
        Err(ArchiveError::NoCheckpoint { path, found })
    }
}

/// Usually the file is truncated.
pub(crate) fn rejected(path: &Path, bytes: &[u8], error: SafeTensorError) -> ArchiveError {
    let size = bytes.len() as u64;
    let expected = match (&error, bytes.first_chunk()) {
        (SafeTensorError::HeaderTooSmall, _) => Some(8),
        (SafeTensorError::InvalidHeaderLength, Some(header)) => u64::from_le_bytes(*header).checked_add(8),
        (SafeTensorError::MetadataIncompleteBuffer, Some(header)) => {
            let end = u64::from_le_bytes(*header).saturating_add(8);
            let header = bytes.get(8..usize::try_from(end).unwrap_or(usize::MAX));
            let metadata: Option<Metadata> = header.and_then(|json| serde_json::from_slice(json).ok());
            metadata.map(|metadata| end + metadata.data_len() as u64)
        }
        _ => None,
    };
    match expected {
        Some(expected) => ArchiveError::SafetensorsLength { path: path.into(), expected, found: size },
        None => ArchiveError::Safetensors { path: path.into(), size, source: error },
    }
}

/// After an incomplete download, the folder has a placeholder.
pub(crate) fn refuse_stand_in(path: &Path, bytes: &[u8]) -> Result<(), ArchiveError> {
    match StandIn::of(bytes) {
        None | Some(StandIn::Empty) => Ok(()),
        Some(found) => {
            Err(ArchiveError::Foreign { path: path.into(), format: UnsupportedFormat::StandIn(found) })
        }
    }
}
