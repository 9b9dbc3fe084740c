//! Converts a whole checkpoint to an archive.

use std::path::Path;

use ops::ElementType;

use crate::progress::Watch;
use crate::write::{NewEntry, WriteOptions, write};
use crate::{ArchiveError, Checkpoint};

pub struct ConvertOptions<'a> {
    /// For all float tensors; `None` keeps their types.
    pub float: Option<ElementType>,
    /// The type and the hash of each tensor. Without them, unsupported element types are possible, and for a
    /// sorted header the archive equals that of `iree-convert-parameters`.
    pub metadata: bool,
    /// The callback that receives the progress, and that can stop the conversion.
    pub watch: Option<Watch<'a>>,
}

impl Default for ConvertOptions<'_> {
    fn default() -> Self {
        Self { float: None, metadata: true, watch: None }
    }
}

/// A tensor whose element type changed during conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    pub name: String,
    pub from: ElementType,
    pub to: ElementType,
}

/// Returns the tensors whose element type changed.
pub fn convert_checkpoint(
    checkpoint: &Checkpoint,
    path: impl AsRef<Path>,
    options: ConvertOptions<'_>,
) -> Result<Vec<Converted>, ArchiveError> {
    let path = path.as_ref();
    checkpoint.check_output(path)?;
    let mut entries = Vec::with_capacity(checkpoint.tensors().len());
    let mut converted = Vec::new();
    for tensor in checkpoint.tensors() {
        let name = tensor.name.clone();
        if !options.metadata && tensor.element().is_none() {
            entries.push(NewEntry::raw(name, tensor.range.len() as u64));
            continue;
        }
        let ty = checkpoint.ty(&name)?;
        let (from, to) = match options.float {
            Some(to) if ty.element.is_float() => (ty.element, to),
            _ => (ty.element, ty.element),
        };
        if !to.is_float() && from != to {
            return Err(ArchiveError::Conversion { from, to });
        }
        if from != to {
            converted.push(Converted { name: name.clone(), from, to });
        }
        entries.push(NewEntry::tensor(name, ty.with_element(to)));
    }
    let write_options = WriteOptions { metadata: options.metadata, watch: options.watch };
    write(path, entries, write_options, |entry, sink| match entry.ty() {
        Some(ty) => sink.write_converted(checkpoint, entry.name(), ty.element),
        None => sink.write(checkpoint.data(entry.name())?),
    })?;
    Ok(converted)
}
