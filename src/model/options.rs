//! How a model is opened: a plain struct with defaults.

use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use etcetera::BaseStrategy as _;
use generate::{GenerateError, GenerateOptions, TokenOptions, Tokenizer};
use lower::Quantization;
use models::ReadModel;
use ops::ElementType;
use ops::format::ActivationBits;
use runtime::Compiler;
use simplify::Rules;
use targets::{DeviceName, Target, Tuning};
use trace::KvFormat;

use super::{ModelError, TemplateProgram};
use crate::build::BuildStep;

/// How [`Model::open_with`](super::Model::open_with) opens a model. `None` always means the usual choice.
///
/// An export keeps the choices it was made with: an option that asks for another one is an error.
///
/// ```
/// use tracewright::OpenOptions;
///
/// let options = OpenOptions { context: Some(8192), slots: 4, ..OpenOptions::default() };
/// assert_eq!(options.threads, 0);
/// ```
#[derive(Clone)]
pub struct OpenOptions {
    /// Type of weights and activations: f32, f16 or bf16. Usually the checkpoint's.
    pub dtype: Option<ElementType>,
    /// The longest sequence, prompt and answer together. Usually 4096, or the model's own limit where that is less; for
    /// embeddings the model's own limit.
    pub context: Option<usize>,
    /// Tokens that one prefill call takes. Usually 128, or what [`tuning`](Self::tuning) measured.
    pub chunk: Option<usize>,
    /// Sequences that are continued in parallel; further ones wait.
    pub slots: usize,
    /// How weights are stored. Usually as the checkpoint stores them.
    pub quantize: Option<Quantization>,
    /// The integers that activations become where weights are integers. Usually they have 8 bits; 16 lose less, and make prefill
    /// slower.
    pub activations: Option<ActivationBits>,
    /// Whether kernels made for the processor compute matmuls and attention. Usually they do.
    pub kernels: Option<bool>,
    /// How keys and values are cached. Usually as the network computes them.
    pub kv: Option<KvFormat>,
    /// The rules that simplify the network. Usually those that hold bit for bit.
    pub rules: Option<Rules>,
    /// The device that runs it. Usually the processor, or the device of an export.
    pub device: Option<DeviceName>,
    /// What is compiled for. Usually the device as it describes itself.
    pub target: Option<Target>,
    /// Worker threads; 0 for as many as there are cores.
    pub threads: usize,
    /// How kernels are cut. Usually as `tracewright tune` measured on this machine.
    pub tuning: Option<TuningSource>,
    /// Whether the entry point that [`score`](super::Model::score) calls is built along with the others. Otherwise it is built
    /// when it is first called.
    pub score: bool,
    /// Whether all weights are compared with the hashes in their archive first.
    pub verify: bool,
    /// Keys of `config.json` that may be there although nothing reads them.
    pub allow_config_keys: Vec<String>,
    /// The architectures that are known.
    pub read: ReadModel,
    /// The compiler. Usually `iree-compile` on the system's path; an export needs none.
    pub compiler: Option<Compiler>,
    /// The folder that keeps compiled modules and baked archives. Usually `tracewright` in the user's cache folder.
    pub cache: Option<PathBuf>,
    /// The program that renders chat templates in a process of its own. Usually they are rendered in this process, under limits of
    /// the engine alone.
    pub template_program: Option<TemplateProgram>,
    /// Is told what takes long, and may ask to stop.
    pub watch: Option<WatchOpen>,
}

/// Where the way in which kernels are cut comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum TuningSource {
    /// What `tracewright tune` measured with this compiler on this machine; the usual way where nothing was measured.
    Measured,
    /// These settings, for all kernels.
    Given(Tuning),
}

/// A function that is told each step of opening a model, from the thread that does it.
#[derive(Clone)]
pub struct WatchOpen(Arc<Mutex<WatchStep>>);

type WatchStep = dyn FnMut(BuildStep) -> ControlFlow<()> + Send;

impl WatchOpen {
    /// Tells `watch`; [`ControlFlow::Break`] stops.
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
            threads: 0,
            tuning: None,
            score: false,
            verify: false,
            allow_config_keys: Vec::new(),
            read: models::read,
            compiler: None,
            cache: None,
            template_program: None,
            watch: None,
        }
    }
}

impl OpenOptions {
    /// The compiler, or the one on the system's path.
    pub(super) fn compiler(&self) -> Compiler {
        self.compiler.clone().unwrap_or_else(|| Compiler::new("iree-compile"))
    }

    /// The folder that keeps compiled modules and baked archives.
    pub(super) fn cache_folder(&self) -> Result<PathBuf, ModelError> {
        let usual = || Some(etcetera::choose_base_strategy().ok()?.cache_dir().join("tracewright"));
        self.cache.clone().or_else(usual).ok_or(ModelError::NoCache)
    }

    /// Tells [`watch`](Self::watch), if there is one.
    pub(super) fn watch_steps(&self) -> impl FnMut(BuildStep) -> ControlFlow<()> + '_ {
        |step| self.watch.as_ref().map_or(ControlFlow::Continue(()), |watch| watch.tell(step))
    }
}

/// The last options that were asked for, in terms of tokens: a schema or a grammar takes a while to read, and a chat has the same
/// one at every turn.
#[derive(Clone, Default)]
pub(super) struct TokenOptionsCache(Arc<Mutex<Option<(GenerateOptions, TokenOptions)>>>);

impl TokenOptionsCache {
    /// These options in terms of tokens.
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
