//! Reads models from GGUF files. The reader converts the metadata to the keys of a `config.json`, and gives
//! the tensors the names that the network declares. The reader also undoes the changes that the conversion to
//! GGUF made to the weights. `docs/gguf.md` in ggml and `gguf-py/gguf/constants.py` in llama.cpp describe the
//! metadata and the names of tensors.

mod imatrix;
mod metadata;
mod names;
mod rope;
mod settings;

use std::path::Path;

use irpa::{
    ArchiveError, CheckpointTensor, Gguf, GgufPart, GgufProblem, ModelFiles, StoredOrder, UnsupportedFormat,
};
use serde_json::{Value, json};

use crate::config::{ConfigError, Keys};
use crate::{FAMILIES, ModelConfig};

pub use imatrix::{ImatrixError, read_imatrix};
pub(crate) use metadata::{Metadata, joined};
pub(crate) use names::{Renaming, interleaved};

/// Pairs of corresponding names in a GGUF file and in a Hugging Face model.
pub(crate) type Names = &'static [(&'static str, &'static str)];

/// The architectures of embedding models (`src/llama-arch.cpp` in llama.cpp).
const EMBEDDERS: [&str; 11] = [
    "bert",
    "eurobert",
    "gemma-embedding",
    "jina-bert-v2",
    "jina-bert-v3",
    "llama-embed",
    "modern-bert",
    "neo-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "t5encoder",
];

/// A description of the GGUF files of a model family.
#[derive(Clone, Copy, Debug)]
pub struct GgufFamily {
    /// The value of `general.architecture` in the file.
    pub architecture: &'static str,
    /// Further values of `general.architecture` that GGUF files of this family can have.
    pub also: &'static [&'static str],
    /// Needed only if several families share the architecture.
    pub(crate) is: fn(&Metadata<'_>) -> bool,
    pub(crate) config: fn(&Metadata<'_>) -> Value,
    /// In `config.json` and metadata, beside the common pairs.
    pub(crate) keys: Names,
    /// Tensors within a layer, beside the common names; the first list with a name applies.
    pub(crate) parts: &'static [Names],
    /// The usual name of a block, such as `self_attn`, and the family's; the first match applies.
    pub(crate) blocks: Names,
    /// The family's names of the tensors outside of layers, in addition to the common names.
    pub(crate) outside: Names,
    /// The network's key prefix for layers, such as `model.layers`.
    pub(crate) layers: &'static str,
    /// Undoes the conversion (`conversion/*.py` in llama.cpp): name within the layer, its suffix, query and
    /// key-value heads, tensor.
    pub(crate) arranged: fn(&str, &str, [usize; 2], &mut CheckpointTensor) -> StoredOrder,
    /// Whether all sums in the network stay within the range of f16.
    pub(crate) fits_f16: bool,
}

impl GgufFamily {
    /// Llama's keys and names, sums within f16, and tensors that the conversion does not change.
    pub(crate) const fn llama(architecture: &'static str) -> Self {
        Self {
            architecture,
            also: &[],
            is: |_| true,
            config: |file| file.llama(json!({})),
            keys: &[],
            parts: &[],
            blocks: &[],
            outside: &[],
            layers: "model.layers",
            arranged: |_, _, _, _| StoredOrder::Same,
            fits_f16: true,
        }
    }
}

/// The names depend only on the architecture.
impl PartialEq for GgufFamily {
    fn eq(&self, other: &Self) -> bool {
        self.architecture == other.architecture
    }
}

impl Eq for GgufFamily {}

/// The architectures that [`read`](crate::read) supports, by their name in `general.architecture`.
pub fn architectures() -> Vec<&'static str> {
    let described = FAMILIES.iter().filter_map(|family| family.gguf);
    let mut names: Vec<&str> =
        described.flat_map(|gguf| gguf.also.iter().copied().chain([gguf.architecture])).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The configuration, and the tensors' names. The error lists all missing and invalid keys.
pub(crate) fn read(file: &Gguf, allowed: &[String]) -> Result<(ModelConfig, Renaming), ConfigError> {
    let metadata = Metadata::new(file)?;
    let renaming = Renaming::new(&metadata);
    let keys = Keys::of(file.path(), metadata.config()?);
    let (config, _) = ModelConfig::of(keys, allowed).map_err(|error| error.named(|key| renaming.key(key)))?;
    Ok((config, renaming))
}

/// `general.architecture`.
pub(crate) fn architecture(path: &Path) -> Result<String, ConfigError> {
    let file = Gguf::open_keys(path)?;
    Ok(file.text("general.architecture").unwrap_or("(none)").to_owned())
}

/// Equivalent to the metadata of a GGUF file. The error lists all missing and invalid keys.
pub fn config_json(files: impl Into<ModelFiles>) -> Result<String, ConfigError> {
    let files = files.into();
    let config = Metadata::new(open(&files)?)?.config()?;
    Ok(serde_json::Value::Object(config).to_string())
}

/// An unsupported architecture is reported before an unsupported encoding, which would not help.
pub(crate) fn open(files: &ModelFiles) -> Result<&Gguf, ConfigError> {
    let path = files.path();
    let error = match files.gguf() {
        Ok(Some(file)) => {
            // A file with only a vocabulary is enough for a tokenizer, but not for a network.
            let foreign = |part| ArchiveError::Foreign {
                path: path.to_owned(),
                format: UnsupportedFormat::GgufPart(part),
            };
            return GgufPart::of(file).map_or(Ok(file), |part| Err(foreign(part).into()));
        }
        Ok(None) => ArchiveError::Gguf { path: path.into(), problems: vec![GgufProblem::Magic] },
        Err(error @ ArchiveError::Foreign { .. }) => return Err(error.into()),
        Err(error) => error,
    };
    let named = Gguf::open_keys(path).ok().filter(|file| file.text("general.architecture").is_some());
    let unknown = named.and_then(|file| Metadata::new(&file).err());
    Err(unknown.unwrap_or_else(|| error.into()))
}
