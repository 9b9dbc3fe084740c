//! [`OpenOptions`] contains the options for opening a model.

use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use etcetera::BaseStrategy as _;
use generate::{ConstraintProgram, GenerateError, GenerateOptions, TokenOptions};
use hub::{Hub, HubError};
use models::{LoraFile, ReadModel};
use program::NumericOptions;
use runtime::Compiler;
use targets::{DeviceName, Mesh, ShardRule, Target};

use super::{ModelError, NamedAdapter, TemplateProgram};
use crate::build::BuildStep;
use crate::tuning::TuningSource;

/// Options of [`Model::open_with`](super::Model::open_with). A field with the value `None` selects
/// the default value.
///
/// An exported model contains the options with which the network was compiled. If you open an
/// exported model, each option must equal the value in the export, or opening fails with an error.
///
/// ```
/// use tracewright::OpenOptions;
///
/// let options = OpenOptions { context: Some(8192), slots: 4, ..OpenOptions::default() };
/// assert_eq!(options.threads, 0);
/// ```
#[derive(Clone)]
pub struct OpenOptions {
    /// The options that change the numbers of the network, such as the formats of its weights.
    pub numeric: NumericOptions,
    /// The most tokens of prompt and answer. The default is 4096, or the model's own limit if this is lower
    /// or for embedding models.
    pub context: Option<usize>,
    /// The tokens of a prefill call, by default 128 or the number that [`tuning`](Self::tuning) measured.
    pub chunk: Option<usize>,
    /// The number of texts in parallel, by default one. Additional texts wait until one ends.
    pub slots: usize,
    /// The device that runs the network, by default the CPU, or the one of an exported model.
    pub device: Option<DeviceName>,
    /// The target of the compilation, by default the selected device on this machine.
    pub target: Option<Target>,
    /// The PJRT plugin whose XLA compiles and runs the network on its device, with code in this process. By
    /// default, IREE runs the network.
    pub plugin: Option<PathBuf>,
    /// The value of `XLA_FLAGS` for the plugin, by default empty. An executable's cache key contains it.
    pub xla_flags: String,
    /// A grid of the plugin's devices with named axes, over which XLA partitions the network. The
    /// mesh begins with the plugin's first device. By default, the network runs on one device.
    pub mesh: Option<Mesh>,
    /// The rules that divide tensors along axes of the mesh, beyond those of the declaration. The rule
    /// `experts=model` gives each device whole experts.
    pub shard: Vec<ShardRule>,
    /// The number of worker threads, or 0 for one per core. XLA ignores it.
    pub threads: usize,
    /// The source of tile sizes, by default the measurements of `tracewright tune` on this machine.
    pub tuning: Option<TuningSource>,
    /// Whether to build the entry point for [`score`](super::Model::score) now, not in its first call.
    pub score: bool,
    /// Whether to build the entry point for the features of [images](super::Opening::chat_with_images).
    pub images: bool,
    /// How to propose draft tokens, several of which one call of the model verifies.
    pub speculate: Speculation,
    /// Whether to compare all weights with the hashes in the archive before loading the weights.
    pub verify: bool,
    /// Low-rank adapters, which Tracewright adds to the weights one after the other; by default none.
    pub lora: Vec<LoraFile>,
    /// Low-rank adapters that requests [choose by name](super::Model::with_adapter); by default none.
    pub lora_adapters: Vec<NamedAdapter>,
    /// The number of adapters among which requests choose at a time, by default those of
    /// [`lora_adapters`](Self::lora_adapters). With more, others can be [loaded](super::Model::load_adapter) later.
    pub max_loras: Option<usize>,
    /// The largest rank of adapters for all linear layers. By default, the layers and ranks of
    /// [`lora_adapters`](Self::lora_adapters), or 16 for all layers with room for other adapters.
    pub max_lora_rank: Option<usize>,
    /// Unknown keys of `config.json` that Tracewright ignores. All others are errors.
    pub allow_config_keys: Vec<String>,
    /// Reads the configuration of a network. Set a function of your own to add architectures.
    pub read: ReadModel,
    /// The compiler, by default `iree-compile` from the `PATH`. An exported model needs none.
    pub compiler: Option<Compiler>,
    /// The folder for compiled modules and converted weights, by default `tracewright` in the user's cache.
    pub cache: Option<PathBuf>,
    /// The Hugging Face hub and its cache. By default, the public hub without a token, and `huggingface/hub`
    /// in the user's cache folder.
    pub hub: Option<Hub>,
    /// Renders chat templates in a separate process; by default this process does so within limits.
    pub template_program: Option<TemplateProgram>,
    /// Follows schemas in separate processes. By default, this process does, which a hostile schema can end.
    pub constraint_program: Option<ConstraintProgram>,
    /// Receives each slow step of opening a model, and can stop the opening; by default none.
    pub watch: Option<WatchOpen>,
}

/// The method by which Tracewright proposes draft tokens. Draft tokens do not change the generated
/// tokens, and correct drafts save network calls.
///
/// ```
/// use tracewright::model::Speculation;
///
/// assert_eq!("draft=SmolLM2-135M".parse(), Ok(Speculation::Draft("SmolLM2-135M".into())));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Speculation {
    /// No method proposes draft tokens, and each call of the network generates one token.
    #[default]
    Off,
    /// Copies draft tokens from after an earlier occurrence of the last tokens in prompt or answer.
    Lookup,
    /// A smaller model with the same tokenizer proposes draft tokens.
    Draft(PathBuf),
    /// The model's own module for multi-token prediction proposes draft tokens.
    Mtp,
}

impl FromStr for Speculation {
    type Err = UnknownSpeculation;

    fn from_str(text: &str) -> Result<Self, UnknownSpeculation> {
        match (text, text.strip_prefix("draft=")) {
            ("off", _) => Ok(Self::Off),
            ("lookup", _) => Ok(Self::Lookup),
            ("mtp", _) => Ok(Self::Mtp),
            (_, Some(path)) if !path.is_empty() => Ok(Self::Draft(path.into())),
            _ => Err(UnknownSpeculation(text.into())),
        }
    }
}

impl fmt::Display for Speculation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Lookup => f.write_str("lookup"),
            Self::Draft(path) => write!(f, "draft={}", path.display()),
            Self::Mtp => f.write_str("mtp"),
        }
    }
}

/// The error for the name of a drafting method that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a drafting method, expected `off`, `lookup`, `draft=MODEL` or `mtp`")]
pub struct UnknownSpeculation(String);

/// A function that receives each step of opening a model, on the thread that runs the step.
#[derive(Clone)]
pub struct WatchOpen(Arc<Mutex<WatchStep>>);

type WatchStep = dyn FnMut(BuildStep) -> ControlFlow<()> + Send;

impl WatchOpen {
    /// Wraps a function that can return [`ControlFlow::Break`] to stop opening the model.
    pub fn new(watch: impl FnMut(BuildStep) -> ControlFlow<()> + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(watch)))
    }

    pub(super) fn tell(&self, step: BuildStep) -> ControlFlow<()> {
        // If the function panicked in an earlier step, the lock is poisoned. Tracewright ignores
        // the poisoned lock and calls the function again.
        let mut watch = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watch(step)
    }
}

impl fmt::Debug for WatchOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchOpen").finish_non_exhaustive()
    }
}

/// Returns the default folder in the user's cache folder, or `None` without a home folder.
pub fn cache_folder() -> Option<PathBuf> {
    Some(etcetera::choose_base_strategy().ok()?.cache_dir().join("tracewright"))
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            numeric: NumericOptions::default(),
            context: None,
            chunk: None,
            slots: 1,
            device: None,
            target: None,
            plugin: None,
            xla_flags: String::new(),
            mesh: None,
            shard: Vec::new(),
            threads: 0,
            tuning: None,
            score: false,
            images: false,
            speculate: Speculation::default(),
            verify: false,
            lora: Vec::new(),
            lora_adapters: Vec::new(),
            max_loras: None,
            max_lora_rank: None,
            allow_config_keys: Vec::new(),
            read: models::read,
            compiler: None,
            cache: None,
            hub: None,
            template_program: None,
            constraint_program: None,
            watch: None,
        }
    }
}

impl OpenOptions {
    /// Returns the hub that the options set, or the public hub with the user's cache.
    pub(super) fn hub(&self) -> Result<Hub, HubError> {
        let cache = || Some(etcetera::choose_base_strategy().ok()?.cache_dir());
        match &self.hub {
            Some(hub) => Ok(hub.clone()),
            None => Hub::of_variables(|_| None, cache().as_deref()),
        }
    }

    /// Returns the compiler that the options set, or the compiler on the `PATH`.
    pub(super) fn compiler(&self) -> Compiler {
        self.compiler.clone().unwrap_or_else(|| Compiler::new("iree-compile"))
    }

    /// Returns the cache folder for compiled modules and archives of converted weights.
    pub(super) fn cache_folder(&self) -> Result<PathBuf, ModelError> {
        self.cache.clone().or_else(cache_folder).ok_or(ModelError::NoCache)
    }

    /// Checks the options for running a network on a mesh of devices. Only XLA can run a network on a mesh. A
    /// mesh begins with the first device, so the options must not select any device except the first.
    pub(super) fn check_mesh(&self) -> Result<(), ModelError> {
        let Some(mesh) = &self.mesh else {
            return match self.shard.first() {
                Some(rule) => Err(ModelError::NoMesh { rule: rule.clone() }),
                None => Ok(()),
            };
        };
        match self.device.filter(|device| device.ordinal > 0) {
            _ if self.plugin.is_none() => Err(ModelError::MeshEngine { mesh: mesh.clone() }),
            Some(device) => Err(ModelError::MeshDevice { mesh: mesh.clone(), device }),
            None => Ok(()),
        }
    }

    /// Returns the draft model's options: the same engine and device, and one sequence.
    pub(super) fn of_draft(&self) -> Self {
        Self {
            device: self.device,
            target: self.target.clone(),
            numeric: NumericOptions { numerics: self.numeric.numerics, ..NumericOptions::default() },
            plugin: self.plugin.clone(),
            xla_flags: self.xla_flags.clone(),
            threads: self.threads,
            verify: self.verify,
            allow_config_keys: self.allow_config_keys.clone(),
            read: self.read,
            compiler: self.compiler.clone(),
            cache: self.cache.clone(),
            watch: self.watch.clone(),
            ..Self::default()
        }
    }

    /// Returns the options of the vision tower: the same engine and device, and weights as in the checkpoint.
    pub(super) fn of_tower(&self) -> Self {
        let dtype = self.numeric.dtype;
        let numeric = NumericOptions { dtype, ..self.of_draft().numeric };
        Self { numeric, ..self.of_draft() }
    }

    /// Returns the options of the network that finds the times of words. It reads the same archive.
    pub(super) fn of_aligner(&self) -> Self {
        let speculate = Speculation::Off;
        Self { slots: 1, context: None, chunk: None, speculate, score: false, images: false, ..self.clone() }
    }

    /// Creates a function that passes each build step to the function in [`watch`](Self::watch).
    pub(super) fn watch_steps(&self) -> impl FnMut(BuildStep) -> ControlFlow<()> + '_ {
        |step| self.watch.as_ref().map_or(ControlFlow::Continue(()), |watch| watch.tell(step))
    }
}

/// Caches the last conversion to token ids, because schemas convert slowly and chats usually repeat them.
#[derive(Clone, Default)]
pub(super) struct TokenOptionsCache(Arc<Mutex<Option<(GenerateOptions, TokenOptions)>>>);

impl TokenOptionsCache {
    /// Returns the options, with all strings converted to token ids.
    pub fn get(
        &self,
        options: &GenerateOptions,
        convert: impl FnOnce() -> Result<TokenOptions, GenerateError>,
    ) -> Result<TokenOptions, GenerateError> {
        if let Some((_, tokens)) = self.last().as_ref().filter(|(known, _)| known == options) {
            return Ok(tokens.clone());
        }
        // Other threads do not wait for a slow schema.
        let tokens = convert()?;
        *self.last() = Some((options.clone(), tokens.clone()));
        Ok(tokens)
    }

    fn last(&self) -> MutexGuard<'_, Option<(GenerateOptions, TokenOptions)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
