//! [`Opening`] is a model whose files are read, but whose network is not built yet.

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;

use errors::WithPath as _;
use generate::{Chat, GenerateError, GenerateOptions, GenerationDefaults, SchemaNote, Tokenizer};
use hub::{Fetched, ModelName};
use irpa::{HubFolder, ModelFiles};
use models::fit::OpenWarning;
use models::{LoraMatrices, Opened, SentenceConfig};
use pixels::Pixels;

use super::adapters::Adapters;
use super::engine::{self, DraftSource, Unbuilt};
use super::handle::{Inner, Model};
use super::image_prompt::{ImagePrompt, ImageReader};
use super::room::{STACK, with_room};
use super::source::{CONTEXT, Source, entries, planned};
use super::speech::TranscribeOptions;
use super::text::ModelText;
use super::{ModelError, ModelInfo, OpenOptions, Speculation};
use crate::build::BuildStep;
use crate::export::IreeManifest;
use crate::{Footprint, Plan, PlanError};

impl Model {
    /// Opens a model with default options. `path` is a Hugging Face folder, a GGUF file, a folder of
    /// `tracewright export`, or a name on the Hugging Face hub such as `HuggingFaceTB/SmolLM2-135M-Instruct`.
    /// The first call converts the weights and compiles the modules, which takes seconds to minutes. The
    /// cache keeps the converted weights and the modules for later calls. You need `iree-compile` for all
    /// models except exports.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        Self::open_with(path, OpenOptions::default())
    }

    /// Opens a model like [`open`](Self::open). It is an error if an option differs from the value in an
    /// export.
    pub fn open_with(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, ModelError> {
        Opening::read(path, options)?.build()
    }
}

/// A model whose configuration, tokenizer and stop tokens are loaded, but whose network is not built yet.
/// [`read`](Self::read) reports errors in the model's files before the slow compilation begins.
/// [`Model::open`] reads the files and builds the network in one call. Use `Opening` if your program chooses
/// options from the files, for example a context that fits the length of a prompt.
///
/// With other options, a clone opens the same model without reading its files again.
#[derive(Clone)]
pub struct Opening {
    /// The options with which [`build`](Self::build) builds the network; you can change them before.
    pub options: OpenOptions,
    files: ModelFiles,
    source: Source,
    text: Arc<ModelText>,
    images: Option<ImageReader>,
    adapters: Option<Arc<Adapters>>,
    /// The matrices of the adapters in the options.
    matrices: Vec<LoraMatrices>,
    warnings: Vec<OpenWarning>,
}

impl Opening {
    /// Reads the files of a model. If `path` is the name of a repository, such as `ORG/NAME`, the
    /// function finds the model in the Hugging Face cache, or downloads the model into the cache.
    /// If `path` is a folder `models--ORG--NAME` of the Hugging Face cache, the function reads the
    /// files of the current snapshot.
    ///
    /// # Errors
    /// Returns an error if a file is missing or damaged, or if the model cannot be downloaded or is
    /// not supported. For an exported model, the function returns an error if an option differs
    /// from the value in the export.
    pub fn read(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, ModelError> {
        options.check_mesh()?;
        let path = located(path.as_ref(), &options)?;
        let files = ModelFiles::at(path);
        let (source, mut warnings) = Source::read(&files, &options)?;
        let text = Arc::new(ModelText::read(&files, &source, &options)?);
        warnings.extend(text.warnings());
        let vision = source.vision();
        let images = vision.map(|vision| ImageReader::new(&files, vision));
        let (adapters, matrices) = Adapters::read(&files, &source, &options)?.unzip();
        let matrices = matrices.unwrap_or_default();
        Ok(Self { options, files, source, text, images, adapters, matrices, warnings })
    }

    /// Returns the model's tokenizer, or `None` if the model has no tokenizer.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.text.tokenizer.as_deref()
    }

    /// The tokenizer, or the error that there is none.
    pub(super) fn needed_tokenizer(&self) -> Result<&Tokenizer, ModelError> {
        self.text.tokenizer()
    }

    /// The name of the model's folder or file.
    pub(super) fn name(&self) -> String {
        let name = self.text.path.file_name().unwrap_or(self.text.path.as_os_str());
        name.to_string_lossy().into_owned()
    }

    /// Returns the ids of the tokens that end a generated text.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.text.stop_tokens
    }

    /// Returns the options that the model's `generation_config.json` sets for its texts.
    pub fn defaults(&self) -> &GenerationDefaults {
        &self.text.defaults
    }

    /// Whether the model transcribes speech, and does nothing else.
    pub fn transcribes(&self) -> bool {
        self.text.speech.is_some()
    }

    /// Returns warnings about the model's files.
    pub fn warnings(&self) -> &[OpenWarning] {
        &self.warnings
    }

    /// Whether the model is an export, which needs no compiler.
    pub fn is_export(&self) -> bool {
        matches!(self.source, Source::Export(..))
    }

    /// Returns the manifest, if the model is an export.
    pub fn manifest(&self) -> Option<&IreeManifest> {
        match &self.source {
            Source::Export(manifest, _) => Some(manifest),
            _ => None,
        }
    }

    /// Returns the most tokens that the model supports, or `None` if an export lacks its `config.json`.
    pub fn max_context(&self) -> Option<usize> {
        match &self.source {
            Source::Export(_, longest) => *longest,
            Source::Checkpoint(model) => Some(model.max_context()),
        }
    }

    /// Returns the largest number of tokens in a sequence of the network that [`build`](Self::build) creates.
    pub fn context(&self) -> usize {
        match &self.source {
            Source::Export(manifest, _) => manifest.context,
            Source::Checkpoint(model) => {
                let usual = if model.sentence().is_some() { usize::MAX } else { CONTEXT };
                self.options.context.unwrap_or(model.max_context().min(usual))
            }
        }
    }

    /// Returns the number of token ids in the vocabulary, or `None` if an export lacks its `config.json`.
    pub fn vocabulary(&self) -> Option<usize> {
        match &self.source {
            Source::Export(..) => None,
            Source::Checkpoint(model) => Some(model.vocabulary()),
        }
    }

    /// Returns the network with the facts that its files add, or `None` for an export.
    pub fn network(&self) -> Option<&Opened> {
        match &self.source {
            Source::Export(..) => None,
            Source::Checkpoint(model) => Some(model),
        }
    }

    /// Returns how an embedding model prepares texts, such as its prompts; `None` for other models.
    pub fn sentence(&self) -> Option<&SentenceConfig> {
        self.source.sentence()
    }

    /// Checks that a speech model can transcribe with the options. Returns the sampling rate that it takes.
    pub fn check_speech(&self, options: &TranscribeOptions) -> Result<u32, ModelError> {
        self.text.speech()?.check(&self.text.path, options)
    }

    /// Checks that the model supports the options. Returns the parts of the schema that an answer can
    /// violate.
    pub fn check_options(&self, options: &GenerateOptions) -> Result<Vec<SchemaNote>, GenerateError> {
        let constraint = self.text.token_options(options)?.constraint;
        Ok(constraint.map_or(Vec::new(), |constraint| constraint.notes().to_vec()))
    }

    /// Renders a conversation with the chat template; see [`Model::render`].
    pub fn render(&self, chat: &Chat) -> Result<String, ModelError> {
        self.text.renderer.render(chat)
    }

    /// Renders a conversation with the chat template. Each part `{"type": "image"}` of a message's content stands
    /// for the next image.
    ///
    /// # Errors
    /// Returns an error if the model reads no images, or the template writes another number of placeholders.
    pub fn chat_with_images(&self, chat: &Chat, images: &[Pixels]) -> Result<ImagePrompt, ModelError> {
        let Some(reader) = &self.images else {
            return Err(engine::reads_text(&self.text.path));
        };
        reader.prompt(self.text.tokenizer()?, chat, images, |chat| self.render(chat))
    }

    /// Chooses a context for at least `tokens` tokens, unless the options or an export set one. It is a power
    /// of two, so that few modules are compiled, and at most the model's own limit.
    pub fn fit_context(&mut self, tokens: usize) {
        if let (Source::Checkpoint(model), None) = (&self.source, self.options.context) {
            self.options.context = Some(Plan::context_for(tokens, model.max_context()));
        }
    }

    fn check_mtp(&self) -> Result<(), ModelError> {
        let (Speculation::Mtp, Source::Checkpoint(model)) = (&self.options.speculate, &self.source) else {
            return Ok(());
        };
        let checkpoint = model.weights(&self.files)?;
        let refuse = |source| ModelError::Mtp { path: self.text.path.clone(), source };
        models::check_mtp(&*model.network, &checkpoint).map_err(refuse)
    }

    fn draft(&self) -> Result<Option<DraftSource>, ModelError> {
        let Speculation::Draft(draft) = &self.options.speculate else { return Ok(None) };
        let files = ModelFiles::at(located(draft, &self.options)?);
        let mut options = self.options.of_draft();
        let (source, _) = Source::read(&files, &options)?;
        if let Source::Checkpoint(model) = &source {
            options.context = Some(self.context().min(model.max_context()));
        }
        let tokenizer = with_room(|| Tokenizer::load(&files))??;
        let is_same = match (&tokenizer, self.tokenizer()) {
            (Some(draft), Some(own)) => own.has_tokens_of(draft),
            (None, None) => true,
            _ => false,
        };
        if is_same {
            Ok(Some(DraftSource { files, source, options }))
        } else {
            Err(ModelError::DraftTokenizer { draft: files.path().to_owned(), path: self.text.path.clone() })
        }
    }

    /// Predicts the memory that the running model needs, in bytes: its weights, its state and its activations.
    pub fn memory(&self) -> Result<u64, ModelError> {
        let Some(network) = self.network() else {
            return Ok(folder_bytes(self.files.path()).with_path("read", self.files.path())?);
        };
        let adapters = self.adapters.as_ref().map(|adapters| adapters.room.clone());
        let plan = Plan { adapters, ..planned(network.clone(), &self.options)? };
        let steps = entries(&plan, &self.options, false);
        let expanded = plan.expand(&plan.record(&steps)?.trace)?;
        Ok(Footprint::of(&expanded).map_err(PlanError::from)?.running())
    }

    /// Builds the network, and starts the engine thread.
    pub fn build(self) -> Result<Model, ModelError> {
        self.check_mtp()?;
        let draft = self.draft()?;
        let Self { options, files, source, text, images, adapters, matrices, warnings } = self;
        let images = images.filter(|_| options.images);
        let tokenizer = text.tokenizer.clone();
        let named = options.lora_adapters.clone().into_iter().zip(matrices).collect();
        let unbuilt = Unbuilt { files, source, tokenizer, options, adapters: adapters.clone(), draft };
        let (jobs, asked) = channel();
        let (tell, built) = channel();
        let thread = thread::Builder::new().name("engine".into()).stack_size(STACK);
        let engine = thread.spawn(move || engine::run(unbuilt, &tell, &asked)).map_err(ModelError::Thread)?;
        // The channel closes without a result only if the engine thread panics. The panic hook
        // prints the message of the panic.
        let info = built.recv().map_err(|_| ModelError::Gone)??;
        let info = ModelInfo { warnings, ..info };
        let (jobs, engine) = (Mutex::new(Some(jobs)), Mutex::new(Some(engine)));
        let inner = Inner { text, info, images, adapters, jobs, engine };
        inner.place_adapters(named)?;
        Ok(Model { inner: Arc::new(inner), adapter: None })
    }
}

/// The size of an export, which consists mostly of weights.
fn folder_bytes(path: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}

/// Returns a model's local path. A name on the hub is downloaded, unless it is a local path. A folder
/// `models--ORG--NAME` means its current snapshot.
fn located(path: &Path, options: &OpenOptions) -> Result<PathBuf, ModelError> {
    if let Some(hub) = HubFolder::at(path) {
        return Ok(hub.snapshot()?.to_owned());
    }
    let Some(name) = ModelName::of_path(path) else { return Ok(path.to_owned()) };
    let mut watch = |at: Fetched<'_>| {
        let step = BuildStep::Download(irpa::Progress { done: at.done, total: at.total });
        options.watch.as_ref().map_or(ControlFlow::Continue(()), |watch| watch.tell(step))
    };
    Ok(options.hub()?.fetch(&name, &mut watch)?)
}
