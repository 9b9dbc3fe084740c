//! Reads GGUF files as models. The metadata are converted to the keys of a `config.json`, and the tensors get
//! the names of the network. Reading undoes the changes that the conversion to GGUF made to weights.
//!
//! `docs/gguf.md` in ggml and `gguf-py/gguf/constants.py` in llama.cpp describe the metadata and names.

mod imatrix;
mod metadata;
mod names;

use std::path::Path;

use bake::Ignorable;
use dsl::{EntryPoint, TraceError, Traced};
use irpa::{Checkpoint, CheckpointTensor, Gguf, StoredOrder};
use lower::Quantization;
use ops::ElementType;
use serde_json::{Value, json};

use crate::config::{ConfigError, Keys};
use crate::quantized::stored;
use crate::shape_check::DeclaredSize;
use crate::{Architecture, FAMILIES, ModelConfig};

use names::Renaming;

pub use imatrix::{ImatrixError, read_imatrix};
pub(crate) use metadata::{Metadata, joined};
pub(crate) use names::interleaved;

/// A name in a GGUF file, and the corresponding name in a Hugging Face model.
type Names = &'static [(&'static str, &'static str)];

/// A description of the GGUF files of a family.
#[derive(Clone, Copy, Debug)]
pub struct GgufFamily {
    /// The value of `general.architecture` in the file.
    pub architecture: &'static str,
    /// Whether a file with this architecture belongs to this family, because some families share an
    /// architecture.
    pub(crate) is: fn(&Metadata<'_>) -> bool,
    /// Converts the metadata to the keys of a `config.json`.
    pub(crate) config: fn(&Metadata<'_>) -> Value,
    /// The names of keys in a `config.json` and in metadata, in addition to the common names.
    pub(crate) keys: Names,
    /// The names of a layer's parts, in addition to the common names.
    pub(crate) parts: Names,
    /// The names of tensors outside of layers, in addition to the common names.
    pub(crate) outside: Names,
    /// The prefix of the keys of layers.
    pub(crate) layers: &'static str,
    /// Undoes the changes that the conversion made to a tensor (`conversion/*.py` in llama.cpp). The
    /// arguments are the part of the layer and the suffix of its name, the numbers of query heads and
    /// key-value heads, and the tensor.
    pub(crate) arranged: fn(&str, &str, [usize; 2], &mut CheckpointTensor) -> StoredOrder,
    /// Whether all sums of the network stay within the range of f16.
    pub(crate) fits_f16: bool,
}

impl GgufFamily {
    /// The GGUF files of a network with the same keys, names and range of sums as Llama. The conversion does
    /// not change the tensors of such a network.
    pub(crate) const fn llama(architecture: &'static str) -> Self {
        Self {
            architecture,
            is: |_| true,
            config: |file| file.llama(json!({})),
            keys: &[],
            parts: &[],
            outside: &[],
            layers: "model.layers",
            arranged: |_, _, _, _| StoredOrder::Same,
            fits_f16: true,
        }
    }
}

/// Two descriptions are equal if they have the same architecture, because the names depend only on the
/// architecture.
impl PartialEq for GgufFamily {
    fn eq(&self, other: &Self) -> bool {
        self.architecture == other.architecture
    }
}

impl Eq for GgufFamily {}

/// The architectures that [`GgufModel::read`] supports, by their name in `general.architecture`.
pub fn architectures() -> Vec<&'static str> {
    let mut names: Vec<&str> = FAMILIES.iter().filter_map(|family| Some(family.gguf?.architecture)).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// A network whose configuration and weights come from a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufModel {
    /// The configuration, converted from the metadata.
    pub config: ModelConfig,
    renaming: Renaming,
    stored: Quantization,
}

impl GgufModel {
    /// Reads the metadata, the table of tensors and the rotary factors of a GGUF file. The configuration may
    /// contain the keys in `allowed` although no code reads them.
    ///
    /// # Errors
    /// Returns an error if the file is not a GGUF file, its architecture is not supported, or keys are
    /// missing or invalid. The error lists all such keys.
    pub fn read(path: &Path, allowed: &[String]) -> Result<Self, ConfigError> {
        let file = open(path)?;
        let metadata = Metadata::new(&file)?;
        let renaming = Renaming::new(&metadata);
        let keys = Keys::of(path, metadata.config()?);
        let config = ModelConfig::of(keys, allowed).map_err(|error| error.named(|key| renaming.key(key)))?;
        let stored = stored(&renaming.apply(Checkpoint::of_gguf(&file)));
        Ok(Self { config, renaming, stored })
    }

    /// The `config.json` that is equivalent to the metadata of a GGUF file.
    ///
    /// # Errors
    /// Returns the same errors as [`read`](Self::read).
    pub fn config_json(path: &Path) -> Result<String, ConfigError> {
        let file = open(path)?;
        let config = Metadata::new(&file)?.config()?;
        Ok(serde_json::Value::Object(config).to_string())
    }
}

/// Opens the file at `path`. If a tensor and the architecture are both unsupported, the error is about the
/// architecture, because no other encoding of the file would help.
fn open(path: &Path) -> Result<Gguf, ConfigError> {
    Gguf::open(path).map_err(|error| {
        let named = Gguf::open_keys(path).ok().filter(|file| file.text("general.architecture").is_some());
        let unknown = named.and_then(|file| Metadata::new(&file).err());
        unknown.unwrap_or_else(|| error.into())
    })
}

impl Architecture for GgufModel {
    fn trace(&self, element: ElementType, entry_points: &[EntryPoint]) -> Result<Traced, TraceError> {
        self.config.trace(element, entry_points)
    }

    fn max_context(&self) -> usize {
        self.config.max_context()
    }

    fn vocabulary(&self) -> usize {
        self.config.vocabulary()
    }

    fn element(&self) -> Option<ElementType> {
        self.config.element()
    }

    fn ignorable(&self) -> Vec<Ignorable> {
        self.config.ignorable()
    }

    fn named(&self, checkpoint: Checkpoint) -> Checkpoint {
        self.renaming.apply(checkpoint)
    }

    fn stored(&self) -> Quantization {
        self.stored.clone()
    }

    fn sizes(&self) -> Vec<DeclaredSize> {
        let named = |claim: DeclaredSize| DeclaredSize { key: self.renaming.key(&claim.key), ..claim };
        self.config.sizes().into_iter().map(named).collect()
    }
}
