//! GGUF files as models: what their metadata say becomes the keys of a `config.json`, their tensors get the names of the
//! networks, and what conversion to GGUF did to weights is undone when they are read.
//!
//! The metadata and names are those of `docs/gguf.md` in ggml and of `gguf-py/gguf/constants.py` in llama.cpp.

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

/// A name in a GGUF file and ours.
type Names = &'static [(&'static str, &'static str)];

/// How GGUF files hold the networks of a family.
#[derive(Clone, Copy, Debug)]
pub struct GgufFamily {
    /// The `general.architecture`.
    pub architecture: &'static str,
    /// Whether a file of this architecture is of this family: some share a name.
    pub(crate) is: fn(&Metadata<'_>) -> bool,
    /// The keys of the `config.json` that means the same as the metadata.
    pub(crate) config: fn(&Metadata<'_>) -> Value,
    /// Keys of a `config.json` and of metadata, beside those that most families share.
    pub(crate) keys: Names,
    /// Parts of a layer, beside those that most families share.
    pub(crate) parts: Names,
    /// What is outside of layers, likewise.
    pub(crate) outside: Names,
    /// How the keys of layers begin.
    pub(crate) layers: &'static str,
    /// What conversion did to a tensor (`conversion/*.py` in llama.cpp): a part and the end of its name, the query heads and
    /// key-value heads.
    pub(crate) arranged: fn(&str, &str, [usize; 2], &mut CheckpointTensor) -> StoredOrder,
    /// Whether f16 has numbers for the sums of the network.
    pub(crate) fits_f16: bool,
}

impl GgufFamily {
    /// The files of a network with Llama's keys, names and sums, whose tensors conversion leaves as they are.
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

/// Files of one architecture have the same names.
impl PartialEq for GgufFamily {
    fn eq(&self, other: &Self) -> bool {
        self.architecture == other.architecture
    }
}

impl Eq for GgufFamily {}

/// The architectures that [`GgufModel::read`] knows, as `general.architecture` names them.
pub fn architectures() -> Vec<&'static str> {
    let mut names: Vec<&str> = FAMILIES.iter().filter_map(|family| Some(family.gguf?.architecture)).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// A network of which a GGUF file has the configuration and the weights.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufModel {
    /// What the metadata say.
    pub config: ModelConfig,
    renaming: Renaming,
    stored: Quantization,
}

impl GgufModel {
    /// Reads the metadata and the table of tensors of a GGUF file, and the factors of its rotary embedding. `allowed` keys
    /// of the configuration may be there although nothing reads them.
    ///
    /// # Errors
    /// If it is no GGUF file, of an architecture that is not known, or everything that is missing or unusable.
    pub fn read(path: &Path, allowed: &[String]) -> Result<Self, ConfigError> {
        let file = open(path)?;
        let metadata = Metadata::new(&file)?;
        let renaming = Renaming::new(&metadata);
        let keys = Keys::of(path, metadata.config()?);
        let config = ModelConfig::of(keys, allowed).map_err(|error| error.named(|key| renaming.key(key)))?;
        let stored = stored(&renaming.apply(Checkpoint::of_gguf(&file)));
        Ok(Self { config, renaming, stored })
    }

    /// The `config.json` that says the same as the metadata of a GGUF file.
    ///
    /// # Errors
    /// See [`read`](Self::read).
    pub fn config_json(path: &Path) -> Result<String, ConfigError> {
        let file = open(path)?;
        let config = Metadata::new(&file)?.config()?;
        Ok(serde_json::Value::Object(config).to_string())
    }
}

/// The file at `path`. Where something is wrong with its tensors and its architecture is not known either, the architecture comes
/// first: the user needs another file.
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
