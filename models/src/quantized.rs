//! Models whose checkpoint contains matrices in quantized blocks. GGUF files and the output folders
//! of `tracewright quantize` contain quantized matrices.

use std::collections::BTreeMap;
use std::path::Path;

use dsl::{EntryPoint, TraceError, Traced};
use irpa::{ArchiveError, BlockFormat, Checkpoint};
use ops::{ElementType, WeightFormat};
use trace::{Ignorable, Quantization, key_pattern};

use crate::config::ConfigError;
use crate::gguf::{self, Renaming};
use crate::shape_check::DeclaredSize;
use crate::{Architecture, ModelConfig, MtpError, UntiedHead};

/// Returns the storage formats of matmul weights that the checkpoint stores in quantized blocks.
/// The result contains a weight format for each pattern of checkpoint keys.
///
/// Tracewright keeps blocks in the formats q8, q4, q4_k and mxfp4. Tracewright converts all other
/// blocks to q8, the format with the least loss. A weight has the same format in all layers.
fn stored(checkpoint: &Checkpoint) -> Quantization {
    let mut blocks: BTreeMap<String, Vec<Option<BlockFormat>>> = BTreeMap::new();
    for tensor in checkpoint.tensors().filter(|tensor| tensor.shape.len() > 1) {
        blocks.entry(key_pattern(&tensor.name)).or_default().push(tensor.blocks());
    }
    let format = |formats: &[Option<BlockFormat>]| match formats {
        _ if formats.contains(&None) => None,
        [Some(first), others @ ..] if others.iter().all(|other| *other == Some(*first)) => match first {
            BlockFormat::Q4_0 => Some(WeightFormat::Q4),
            BlockFormat::Q4K => Some(WeightFormat::Q4K),
            BlockFormat::Mxfp4 => Some(WeightFormat::Mxfp4),
            _ => Some(WeightFormat::Q8),
        },
        _ => Some(WeightFormat::Q8),
    };
    let formats = blocks.into_iter().filter_map(|(key, formats)| Some((key, format(&formats)?)));
    Quantization::by_key(formats.collect())
}

/// A network whose checkpoint contains matrices in quantized blocks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct QuantizedModel {
    config: ModelConfig,
    /// The names of the tensors in the model's GGUF file, or `None` for a model in a folder.
    gguf: Option<Renaming>,
    stored: Quantization,
}

impl QuantizedModel {
    /// Creates the model of a folder. If the folder contains a checkpoint, the model uses the
    /// storage formats of the checkpoint, even if the configuration declares other formats.
    pub(crate) fn of_folder(config: ModelConfig, path: &Path) -> Box<dyn Architecture> {
        // If the checkpoint is damaged or missing, the function that reads the weights reports the error.
        let checkpoint = path.is_dir().then(|| Checkpoint::open(path).ok()).flatten();
        let stored = checkpoint.map(|checkpoint| stored(&config.named(checkpoint)));
        match stored {
            Some(stored) if stored != config.stored() => Box::new(Self { config, gguf: None, stored }),
            _ => Box::new(config),
        }
    }

    /// Creates the model that a GGUF file contains.
    ///
    /// # Errors
    /// Returns the same errors as [`gguf::read`].
    pub(crate) fn of_gguf(path: &Path, allowed: &[String]) -> Result<Self, ConfigError> {
        let (config, renaming, checkpoint) = gguf::read(path, allowed)?;
        Ok(Self { config, gguf: Some(renaming), stored: stored(&checkpoint) })
    }
}

impl Architecture for QuantizedModel {
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

    fn check_mtp(&self) -> Result<(), MtpError> {
        self.config.check_mtp()
    }

    fn ignorable(&self) -> Vec<Ignorable> {
        self.config.ignorable()
    }

    fn named(&self, checkpoint: Checkpoint) -> Checkpoint {
        match &self.gguf {
            Some(renaming) => renaming.apply(checkpoint),
            None => self.config.named(checkpoint),
        }
    }

    fn weights(&self, checkpoint: Checkpoint) -> Result<Checkpoint, ArchiveError> {
        match self.gguf {
            Some(_) => Ok(self.named(checkpoint)),
            None => self.config.weights(checkpoint),
        }
    }

    fn settle_head(&mut self, checkpoint: &Checkpoint) -> Option<UntiedHead> {
        // In a GGUF file, the tensors determine whether the output head is tied to the embedding
        // table.
        self.gguf.is_none().then(|| self.config.settle_head(checkpoint)).flatten()
    }

    fn stored(&self) -> Quantization {
        self.stored.clone()
    }

    fn sizes(&self) -> Vec<DeclaredSize> {
        let mut sizes = self.config.sizes();
        if let Some(renaming) = &self.gguf {
            sizes.iter_mut().for_each(|size| size.key = renaming.key(&size.key));
        }
        sizes
    }
}
