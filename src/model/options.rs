//! [`OpenOptions`]: a plain struct with defaults.

use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use etcetera::BaseStrategy as _;
use generate::{GenerateError, GenerateOptions, TokenOptions, Tokenizer};
use hub::{Hub, HubError};
use lower::Quantization;
use models::ReadModel;
use ops::ElementType;
use ops::format::ActivationBits;
use runtime::Compiler;
use simplify::Rules;
use targets::{DeviceName, Target};
use trace::KvFormat;

use super::{ModelError, TemplateProgram};
use crate::build::BuildStep;
use crate::tuning::TuningSource;

/// Options of [`Model::open_with`](super::Model::open_with). `None` always means the default.
///
/// An export has its options built in. An option that asks for another value is an error.
///
/// ```
/// use tracewright::OpenOptions;
///
/// let options = OpenOptions { context: Some(8192), slots: 4, ..OpenOptions::default() };
/// assert_eq!(options.threads, 0);
/// ```
#[derive(Clone)]
pub struct OpenOptions {
    /// Type of weights and activations: f32, f16 or bf16. Default: the type in the checkpoint.
    pub dtype: Option<ElementType>,
    /// The longest sequence in tokens, prompt and answer together. Default: 4096, or the model's own limit if
    /// that is less. For embedding models the default is the model's own limit.
    pub context: Option<usize>,
    /// Tokens per prefill call. Default: 128, or the value that [`tuning`](Self::tuning) measured.
    pub chunk: Option<usize>,
    /// Sequences that are continued in parallel. Further sequences wait. Default: 1.
    pub slots: usize,
    /// The storage format of weights. Default: the checkpoint's own format.
    pub quantize: Option<Quantization>,
    /// The integers that activations become where weights are integers. Usually they have 8 bits; 16 lose less, and make prefill
    /// slower.
    pub activations: Option<ActivationBits>,
    /// Whether kernels made for the processor compute matmuls and attention. Usually they do.
    pub kernels: Option<bool>,
    /// The storage format of cached keys and values. Default: the element type of the network.
    pub kv: Option<KvFormat>,
    /// The rules that simplify the network. Default: the rules that keep results bit for bit.
    pub rules: Option<Rules>,
    /// The device that runs the network. Default: the processor, or the device that the export targets.
    pub device: Option<DeviceName>,
    /// The target of the compiler. Default: the device's own description.
    pub target: Option<Target>,
    /// Path of a PJRT plugin, whose XLA runs the network on the plugin's device. Its code runs in this process. Default:
    /// IREE runs the network.
    pub plugin: Option<PathBuf>,
    /// Worker threads; 0 means one per core. XLA ignores the number.
    pub threads: usize,
    /// The source of the kernels' tile sizes. Default: measurements of `tracewright tune` on this machine.
    pub tuning: Option<TuningSource>,
    /// Whether to build the entry point for [`score`](super::Model::score) together with the others.
    /// Otherwise the first call of `score` builds it.
    pub score: bool,
    /// The source of drafted tokens, of which one call verifies several.
    pub speculate: Speculation,
    /// Whether to compare all weights with the hashes in their archive before loading.
    pub verify: bool,
    /// Keys that `config.json` may contain although no code reads them.
    pub allow_config_keys: Vec<String>,
    /// The function that reads a configuration. Replace it to add your own architectures.
    pub read: ReadModel,
    /// The compiler. Default: `iree-compile` on the `PATH`. An export needs none.
    pub compiler: Option<Compiler>,
    /// The folder for compiled modules and baked archives. Default: `tracewright` in the user's cache folder.
    pub cache: Option<PathBuf>,
    /// The cache of the Hugging Face hub, and where downloads come from. Default: `huggingface/hub` in the
    /// user's cache folder, and the public hub without a token.
    pub hub: Option<Hub>,
    /// A program that renders chat templates in a process of its own. Default: they are rendered in this
    /// process, under the limits of the template engine alone.
    pub template_program: Option<TemplateProgram>,
    /// Receives each slow step, and can stop it. Default: no reports.
    pub watch: Option<WatchOpen>,
}

/// What drafts tokens. A text has the same tokens with drafts as without, and fewer calls where drafts are right.
///
/// ```
/// use tracewright::model::Speculation;
///
/// assert_eq!("draft=SmolLM2-135M".parse(), Ok(Speculation::Draft("SmolLM2-135M".into())));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Speculation {
    /// Nothing: each call chooses one token.
    #[default]
    Off,
    /// Repetitions: what followed the same tokens earlier in the prompt or the answer.
    Lookup,
    /// A smaller model with the same tokenizer.
    Draft(PathBuf),
}

impl FromStr for Speculation {
    type Err = UnknownSpeculation;

    fn from_str(text: &str) -> Result<Self, UnknownSpeculation> {
        match (text, text.strip_prefix("draft=")) {
            ("off", _) => Ok(Self::Off),
            ("lookup", _) => Ok(Self::Lookup),
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
        }
    }
}

/// A way of drafting that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no way of drafting tokens, expected `off`, `lookup` or `draft=MODEL`")]
pub struct UnknownSpeculation(String);

/// A function that is told each step of opening a model, from the thread that does it.
#[derive(Clone)]
pub struct WatchOpen(Arc<Mutex<WatchStep>>);

type WatchStep = dyn FnMut(BuildStep) -> ControlFlow<()> + Send;

impl WatchOpen {
    /// Wraps a function. It returns [`ControlFlow::Break`] to stop.
    pub fn new(watch: impl FnMut(BuildStep) -> ControlFlow<()> + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(watch)))
    }

    pub(super) fn tell(&self, step: BuildStep) -> ControlFlow<()> {
        // One that panicked is not asked to be consistent.
        let mut watch = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watch(step)
    }
}

impl fmt::Debug for WatchOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchOpen").finish_non_exhaustive()
    }
}

/// The default folder for compiled modules and baked archives, in the user's cache folder. `None` without a
/// home folder.
pub fn cache_folder() -> Option<PathBuf> {
    Some(etcetera::choose_base_strategy().ok()?.cache_dir().join("tracewright"))
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            dtype: None,
            context: None,
            chunk: None,
            slots: 1,
            quantize: None,
            activations: None,
            kernels: None,
            kv: None,
            rules: None,
            device: None,
            target: None,
            plugin: None,
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
            watch: None,
        }
    }
}

impl OpenOptions {
    /// The hub of the options, or the public one with the user's cache.
    pub(super) fn hub(&self) -> Result<Hub, HubError> {
        let cache = || Some(etcetera::choose_base_strategy().ok()?.cache_dir());
        match &self.hub {
            Some(hub) => Ok(hub.clone()),
            None => Hub::of_variables(|_| None, cache().as_deref()),
        }
    }

    /// The compiler of the options, or the one on the `PATH`.
    pub(super) fn compiler(&self) -> Compiler {
        self.compiler.clone().unwrap_or_else(|| Compiler::new("iree-compile"))
    }

    /// The folder for compiled modules and baked archives.
    pub(super) fn cache_folder(&self) -> Result<PathBuf, ModelError> {
        self.cache.clone().or_else(cache_folder).ok_or(ModelError::NoCache)
    }

    /// How the model is opened that drafts for one that these options open: on the same device, for one text.
    pub(super) fn of_draft(&self) -> Self {
        Self {
            device: self.device,
            target: self.target.clone(),
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

    /// A function that forwards steps to [`watch`](Self::watch).
    pub(super) fn watch_steps(&self) -> impl FnMut(BuildStep) -> ControlFlow<()> + '_ {
        |step| self.watch.as_ref().map_or(ControlFlow::Continue(()), |watch| watch.tell(step))
    }
}

/// A cache of the last options, converted to tokens. Converting a schema or a grammar is slow, and the turns
/// of a chat usually have the same one.
#[derive(Clone, Default)]
pub(super) struct TokenOptionsCache(Arc<Mutex<Option<(GenerateOptions, TokenOptions)>>>);

impl TokenOptionsCache {
    /// The options, converted to tokens.
    pub fn get(
        &self,
        options: &GenerateOptions,
        tokenizer: Option<&Tokenizer>,
        stop_tokens: &[u32],
    ) -> Result<TokenOptions, GenerateError> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, tokens)) = last.as_ref().filter(|(known, _)| known == options) {
            return Ok(tokens.clone());
        }
        let tokens = options.in_tokens(tokenizer, stop_tokens)?;
        *last = Some((options.clone(), tokens.clone()));
        Ok(tokens)
    }
}
