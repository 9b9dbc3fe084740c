//! [`OpenOptions`] contains the options for opening a model.

use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use etcetera::BaseStrategy as _;
use generate::{ConstraintProgram, GenerateError, GenerateOptions, TokenOptions};
use hub::{Hub, HubError};
use models::ReadModel;
use program::NumericOptions;
use runtime::Compiler;
use targets::{DeviceName, Mesh, ShardRule, Target};

use super::{ModelError, TemplateProgram};
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
    /// The largest number of tokens in a sequence, prompt and answer together. The default context
    /// is 4096 tokens, or the model's own limit if this limit is below 4096 tokens. For embedding
    /// models, the default context is the model's own limit.
    pub context: Option<usize>,
    /// The number of tokens that a prefill call processes. By default, a prefill call processes 128
    /// tokens, or the number that [`tuning`](Self::tuning) measured.
    pub chunk: Option<usize>,
    /// The number of texts that the model continues in parallel. Additional texts wait until one of
    /// the running texts ends. By default, the model continues one text at a time.
    pub slots: usize,
    /// The device that runs the network. The default device is the CPU. For an exported model, the
    /// default device is the device for which the network was compiled.
    pub device: Option<DeviceName>,
    /// The target for which the network is compiled. By default, the compiler builds the network
    /// for the selected device on this machine.
    pub target: Option<Target>,
    /// The path of the PJRT plugin that runs the network. If you set a plugin, the plugin's XLA
    /// compiles and runs the network on the plugin's device. The plugin's code runs in this
    /// process. By default, IREE runs the network.
    pub plugin: Option<PathBuf>,
    /// The value of the environment variable `XLA_FLAGS`, which the plugin reads. The cache key of
    /// an executable contains the XLA flags. By default, the string of XLA flags is empty.
    pub xla_flags: String,
    /// A grid of the plugin's devices with named axes, over which XLA partitions the network. The
    /// mesh begins with the plugin's first device. By default, the network runs on one device.
    pub mesh: Option<Mesh>,
    /// The rules that divide axes of tensors along axes of the mesh. The rules in this list
    /// override or extend the rules in the network's declaration. The rule `experts=model` gives
    /// each device whole experts.
    pub shard: Vec<ShardRule>,
    /// The number of worker threads that run the network. With 0 worker threads, Tracewright uses
    /// one thread per core. XLA ignores the number of worker threads.
    pub threads: usize,
    /// The source of the tile sizes of kernels. By default, Tracewright uses the measurements of
    /// `tracewright tune` on this machine.
    pub tuning: Option<TuningSource>,
    /// Whether to build the entry point for [`score`](super::Model::score) when the model is
    /// opened. If `score` is false, the first call of [`score`](super::Model::score) builds the
    /// entry point for scores.
    pub score: bool,
    /// The method by which Tracewright proposes draft tokens. One call of the model verifies
    /// several draft tokens.
    pub speculate: Speculation,
    /// Whether to compare all weights with the hashes in the archive before loading the weights.
    pub verify: bool,
    /// Unknown keys of `config.json` that Tracewright ignores. Unknown keys that are not in this
    /// list are errors.
    pub allow_config_keys: Vec<String>,
    /// The function that reads the configuration of a network. To add your own architectures, set a
    /// function of your own.
    pub read: ReadModel,
    /// The compiler. By default, Tracewright runs `iree-compile` from the `PATH`. An exported model
    /// needs no compiler, because its network is already compiled.
    pub compiler: Option<Compiler>,
    /// The cache folder for compiled modules and archives of converted weights. By default, the
    /// cache folder is `tracewright` in the user's cache folder.
    pub cache: Option<PathBuf>,
    /// The Hugging Face hub from which Tracewright downloads models, and the cache of the hub. By
    /// default, Tracewright uses the public hub without a token, and the cache `huggingface/hub` in
    /// the user's cache folder.
    pub hub: Option<Hub>,
    /// A program that renders chat templates in a separate process. By default, Tracewright renders
    /// chat templates in this process, under the limits of the template engine.
    pub template_program: Option<TemplateProgram>,
    /// A program that follows JSON schemas and grammars in separate processes. By default, Tracewright
    /// follows schemas and grammars in this process, which a hostile schema can end.
    pub constraint_program: Option<ConstraintProgram>,
    /// A function that receives each slow step of opening a model, and can stop the opening. By
    /// default, no function receives the steps of opening a model.
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
    /// Draft tokens are copied from the text. If the last tokens also occur earlier in the prompt
    /// or the answer, the drafter proposes the tokens after the earlier occurrence.
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

/// A function that receives each step of opening a model. Tracewright calls the function on the
/// thread that runs the step.
#[derive(Clone)]
pub struct WatchOpen(Arc<Mutex<WatchStep>>);

type WatchStep = dyn FnMut(BuildStep) -> ControlFlow<()> + Send;

impl WatchOpen {
    /// Wraps a function that receives the steps of opening a model. To stop opening the model, the
    /// wrapped function returns [`ControlFlow::Break`].
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

/// Returns the default folder for compiled modules and archives of converted weights, which is in
/// the user's cache folder. Returns `None` if the user has no home folder.
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
            speculate: Speculation::default(),
            verify: false,
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

    /// Checks the options for running a network on a mesh of devices. Only XLA can run a network on
    /// a mesh. A mesh begins with the first device, so the options must not select any device
    /// except the first.
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

    /// Returns the options for the draft model. The draft model uses the same engine and device as
    /// the large model, and continues one sequence.
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

    /// Creates a function that passes each build step to the function in [`watch`](Self::watch).
    pub(super) fn watch_steps(&self) -> impl FnMut(BuildStep) -> ControlFlow<()> + '_ {
        |step| self.watch.as_ref().map_or(ControlFlow::Continue(()), |watch| watch.tell(step))
    }
}

/// Caches the result of the last conversion of options to token ids. The conversion of a schema or
/// a grammar is slow, and the turns of a chat usually use the same schema or grammar.
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
