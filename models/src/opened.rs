//! [`Opened`] is a network together with the facts that its files add.

use std::ops::Deref;
use std::sync::Arc;

use dsl::{EntryPoint, LogitsMode};
use irpa::{ArchiveError, Checkpoint, ModelFiles};
use trace::{Ignorable, Quantization};

use crate::alignment::Alignment;
use crate::config::ConfigError;
use crate::family::{Family, GgufFamily, Stacks, TOWER_PREFIXES};
use crate::gguf::{self, Renaming};
use crate::quantized::stored_in;
use crate::sentence::SentenceConfig;
use crate::shape_check::DeclaredSize;
use crate::speech::SpeechConfig;
use crate::storage::Storage;
use crate::vision::{POOLING_HEAD, TEXT_IGNORABLE, TOWER, Vision, entry_name};
use crate::whisper::WhisperConfig;
use crate::{Architecture, ModelConfig, UntiedHead, head};

/// With all facts about its checkpoint as data, so that a network that wraps another one cannot forget any.
#[derive(Clone)]
pub struct Opened {
    /// The network itself. `Opened` dereferences to it.
    pub network: Arc<dyn Architecture>,
    /// The names of the network's weights in the checkpoint.
    pub naming: Naming,
    /// Tensors that a checkpoint may contain in addition to the network's parameters.
    pub ignorable: Vec<Ignorable>,
    /// For matmul weights; differs from the network's type only if the checkpoint has fewer bits.
    pub stored: Quantization,
    /// The purpose of the network.
    pub kind: ModelKind,
    /// The checkpoint has a head, which `network` reads, although the configuration ties it.
    pub untied_head: Option<UntiedHead>,
    /// Under the network's names; `None` without weights, or until [`weights`](Self::weights) renames them.
    pub renamed: Option<Checkpoint>,
    /// The tower that computes features of images.
    pub vision: Option<Vision>,
    /// The network whose attention tells the times of words.
    pub aligned: Option<WhisperConfig>,
}

/// The purpose of a network, which determines its entry points.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelKind {
    /// The network predicts the next token of a text.
    Text,
    /// For a whole text in one call, with settings for texts.
    Embedding(SentenceConfig),
    /// For a spectrogram, of which the network predicts the text.
    Speech(SpeechConfig),
    /// The network computes features of an image, with an entry point for each number of patches.
    Tower(Vec<usize>),
    /// The network computes the attention of a text to speech.
    Alignment,
}

/// Converts the names of a checkpoint's tensors to the names that a network declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Naming(Names);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Names {
    /// The network's own.
    Own,
    Family {
        prefixes: &'static [(&'static str, &'static str)],
        stacks: Stacks,
        embedding: &'static str,
        /// The key of the embedding table, if the output head is tied to it.
        tied: Option<&'static str>,
        /// The family's names in GGUF files.
        gguf: Option<&'static GgufFamily>,
        folders: Vec<String>,
        storage: Storage,
    },
    Gguf(Renaming),
}

impl Deref for Opened {
    type Target = dyn Architecture;

    fn deref(&self) -> &Self::Target {
        &*self.network
    }
}

impl From<ModelConfig> for Opened {
    fn from(config: ModelConfig) -> Self {
        Self {
            naming: config.naming(),
            ignorable: config.ignorable(),
            stored: config.stored(),
            kind: config.kind(),
            untied_head: None,
            renamed: None,
            vision: config.vision().cloned(),
            aligned: config.aligned().cloned(),
            network: Arc::new(config),
        }
    }
}

impl Opened {
    /// A network of your own that predicts tokens. The checkpoint has its parameters under their names, not
    /// quantized.
    pub fn text(network: impl Architecture + 'static) -> Self {
        Self {
            network: Arc::new(network),
            naming: Naming(Names::Own),
            ignorable: Vec::new(),
            stored: Quantization::Computed,
            kind: ModelKind::Text,
            untied_head: None,
            renamed: None,
            vision: None,
            aligned: None,
        }
    }

    /// The network of the vision tower, which reads the same checkpoint.
    #[must_use]
    pub fn tower(&self) -> Option<Self> {
        let vision = self.vision.clone()?;
        Some(Self {
            kind: ModelKind::Tower(vision.calls()),
            network: Arc::new(vision),
            naming: self.naming.clone(),
            ignorable: TEXT_IGNORABLE.to_vec(),
            stored: Quantization::Computed,
            untied_head: None,
            renamed: self.renamed.clone(),
            vision: None,
            aligned: None,
        })
    }

    /// The network that computes the attention of `heads`, each a layer and a number, to the speech of a known text.
    #[must_use]
    pub fn aligner(&self, heads: Vec<[usize; 2]>) -> Option<Self> {
        let whisper = self.aligned.clone()?;
        Some(Self {
            network: Arc::new(Alignment { whisper, heads }),
            kind: ModelKind::Alignment,
            aligned: None,
            ..self.clone()
        })
    }

    /// Adds storage formats, and whether the head is tied, as in HF transformers.
    ///
    /// # Errors
    /// Returns an error if the tensors of a quantized module are together no weight.
    pub(crate) fn of_folder(
        mut config: ModelConfig,
        storage: Storage,
        files: &ModelFiles,
    ) -> Result<Self, ConfigError> {
        // If the checkpoint is damaged or missing, the function that reads the weights reports the error.
        let checkpoint = files.path().is_dir().then(|| files.checkpoint().ok()).flatten();
        let Some(checkpoint) = checkpoint else {
            return Ok(Self { naming: config.naming().with_storage(storage), ..config.into() });
        };
        let (joined, problems) = storage.joined(checkpoint.clone());
        if !problems.is_empty() {
            return Err(ArchiveError::Joined { path: checkpoint.path().into(), problems }.into());
        }
        let named = config.naming().apply(joined);
        let untied_head = config.tied().and_then(|embedding| head::own_head(&named, embedding));
        if untied_head.is_some() {
            config.untie();
        }
        let naming = config.naming().with_storage(storage);
        Ok(Self { stored: stored_in(&named), untied_head, renamed: Some(named), naming, ..config.into() })
    }

    /// The tensors determine whether the head is tied.
    pub(crate) fn of_gguf(files: &ModelFiles, allowed: &[String]) -> Result<Self, ConfigError> {
        let (config, renaming) = gguf::read(gguf::open(files)?, allowed)?;
        let named = renaming.apply(files.checkpoint()?.clone());
        let naming = Naming(Names::Gguf(renaming));
        Ok(Self { stored: stored_in(&named), naming, renamed: Some(named), ..config.into() })
    }

    /// Under the network's names, renamed only if [`renamed`](Self::renamed) lacks them.
    pub fn weights(&self, files: &ModelFiles) -> Result<Checkpoint, ArchiveError> {
        self.naming.with_folders(self.without_folders(files)?)
    }

    /// Without those in folders next to the checkpoint.
    pub(crate) fn without_folders(&self, files: &ModelFiles) -> Result<Checkpoint, ArchiveError> {
        match &self.renamed {
            Some(renamed) => Ok(renamed.clone()),
            None => Ok(self.naming.apply(files.checkpoint()?.clone())),
        }
    }

    /// Renames the tensors of another checkpoint to the names that the network declares.
    pub fn named(&self, checkpoint: Checkpoint) -> Checkpoint {
        self.naming.apply(checkpoint)
    }

    /// Whether the other network of the checkpoint reads a tensor: the vision tower, or the text network of a tower.
    pub fn is_of_other(&self, name: &str) -> bool {
        let is_of_tower = TOWER.iter().any(|prefix| name.starts_with(prefix));
        match self.kind {
            ModelKind::Tower(_) => !is_of_tower,
            _ => self.vision.is_some() && is_of_tower && !name.starts_with(POOLING_HEAD),
        }
    }

    /// The entry points of a compiled program with the given batch size, chunk length and context length.
    pub fn entry_points(&self, batch: usize, chunk: usize, context: usize) -> Vec<EntryPoint> {
        self.kind.entry_points(batch, chunk, context)
    }

    /// The settings with which an embedding model prepares texts; see [`ModelKind::sentence`].
    pub fn sentence(&self) -> Option<&SentenceConfig> {
        self.kind.sentence()
    }

    /// The [sizes of the network](Architecture::sizes), with the keys of the model's own file.
    pub fn sizes(&self) -> Vec<DeclaredSize> {
        let mut sizes = self.network.sizes();
        if let Names::Gguf(renaming) = &self.naming.0 {
            sizes.iter_mut().for_each(|size| size.key = renaming.key(&size.key));
        }
        sizes
    }
}

impl ModelKind {
    /// The entry points of a compiled program with the given batch size, chunk length and context length.
    pub fn entry_points(&self, batch: usize, chunk: usize, context: usize) -> Vec<EntryPoint> {
        match self {
            Self::Text => EntryPoint::all(batch, chunk, context),
            Self::Embedding(_) => {
                vec![EntryPoint::new("embed", batch, context, context, LogitsMode::None)]
            }
            Self::Speech(speech) => speech.entry_points(batch, chunk, context),
            Self::Tower(calls) => {
                let of = |&patches: &usize| {
                    EntryPoint::new(&entry_name(patches), batch, patches, patches, LogitsMode::None)
                };
                calls.iter().map(of).collect()
            }
            Self::Alignment => vec![EntryPoint::new("align", batch, context, context, LogitsMode::None)],
        }
    }

    /// The settings with which an embedding model prepares texts, or `None` for another model.
    pub fn sentence(&self) -> Option<&SentenceConfig> {
        match self {
            Self::Text | Self::Tower(_) | Self::Alignment | Self::Speech(_) => None,
            Self::Embedding(sentence) => Some(sentence),
        }
    }

    /// The sizes of a network's spectrograms, or `None` for another model.
    pub fn speech(&self) -> Option<&SpeechConfig> {
        match self {
            Self::Speech(speech) => Some(speech),
            Self::Text | Self::Tower(_) | Self::Alignment | Self::Embedding(_) => None,
        }
    }

    /// Beside tokenizer and weights; some may be missing.
    pub fn files(&self) -> Vec<String> {
        match self {
            Self::Text | Self::Tower(_) | Self::Alignment => Vec::new(),
            Self::Embedding(sentence) => sentence.files(),
            Self::Speech(_) => SpeechConfig::FILES.map(str::to_owned).into(),
        }
    }
}

impl Naming {
    /// Whether the output head is the embedding table.
    pub(crate) fn is_tied(&self) -> bool {
        matches!(&self.0, Names::Family { tied: Some(_), .. })
    }

    /// The names of a family. `tied` is true if the output head is tied to the embedding table.
    /// `folders` next to the checkpoint have further tensors.
    pub(crate) fn of(family: &'static Family, tied: bool, folders: Vec<String>) -> Self {
        let &Family { prefixes, stacks, embedding, .. } = family;
        let (tied, storage) = (tied.then_some(embedding), Storage::default());
        let gguf = family.gguf.as_ref();
        Self(Names::Family { prefixes, stacks, embedding, tied, gguf, folders, storage })
    }

    /// For a folder with quantized weights.
    pub(crate) fn with_storage(mut self, new: Storage) -> Self {
        if let Names::Family { storage, .. } = &mut self.0 {
            *storage = new;
        }
        self
    }

    /// Renames the tensors of a checkpoint. A tensor that the network does not declare keeps its name.
    #[must_use]
    pub fn apply(&self, checkpoint: Checkpoint) -> Checkpoint {
        match &self.0 {
            Names::Own => checkpoint,
            Names::Gguf(renaming) => renaming.apply(checkpoint),
            Names::Family { prefixes, stacks, tied, storage, .. } => {
                // `of_folder` has reported the problems.
                let (checkpoint, _) = storage.joined(checkpoint);
                let named = checkpoint.renamed(prefixes).with_scales().apart(stacks);
                // If two weights are tied, a checkpoint can contain only one of the two tensors, under
                // either name.
                match tied {
                    Some(embedding) => named.renamed(&[(head::HEAD, embedding)]),
                    None => named,
                }
            }
        }
    }

    /// The possible names in the network of a weight that HF transformers names `weight`, the most likely one first.
    pub(crate) fn of_weight(&self, weight: &str) -> Vec<String> {
        let prefixes = match &self.0 {
            Names::Own => &[],
            Names::Family { prefixes, .. } => *prefixes,
            Names::Gguf(renaming) => renaming.prefixes,
        };
        let renamed = [prefixes, TOWER_PREFIXES].into_iter().filter_map(|prefixes| {
            prefixes.iter().find_map(|(from, to)| Some(format!("{to}{}", weight.strip_prefix(from)?)))
        });
        renamed.chain([weight.to_owned()]).collect()
    }

    /// The name of the embedding table; `None` for a network of your own.
    pub(crate) fn embedding(&self) -> Option<&'static str> {
        match &self.0 {
            Names::Own => None,
            Names::Family { embedding, .. } => Some(embedding),
            Names::Gguf(renaming) => Some(renaming.embedding),
        }
    }

    /// The names in GGUF files with the given `general.architecture`; `None` if the network is of another one. `heads`
    /// are those of queries and of keys, for a network that is no GGUF file itself.
    pub(crate) fn in_gguf(&self, architecture: &str, heads: impl FnOnce() -> [usize; 2]) -> Option<Renaming> {
        match &self.0 {
            Names::Gguf(renaming) => renaming.is_of(architecture).then(|| renaming.clone()),
            Names::Family { gguf: Some(gguf), .. } => {
                let renaming = Renaming::of(gguf);
                let heads = renaming.is_of(architecture).then(heads).filter(|heads| heads[0] > 0)?;
                Some(renaming.with_heads(heads))
            }
            _ => None,
        }
    }

    /// `tracewright quantize` writes the tensors of all folders into one file.
    fn with_folders(&self, named: Checkpoint) -> Result<Checkpoint, ArchiveError> {
        let Names::Family { folders, .. } = &self.0 else { return Ok(named) };
        folders.iter().try_fold(named, |all, folder| {
            let is_inside = |name: &str| name.strip_prefix(folder).is_some_and(|rest| rest.starts_with('.'));
            if all.tensors().any(|tensor| is_inside(&tensor.name)) {
                Ok(all)
            } else {
                all.with_folder(folder)
            }
        })
    }
}
