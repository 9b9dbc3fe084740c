//! A model of which the files are read, and the network is not built yet.

use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;

use generate::{Chat, GenerateError, GenerateOptions, Tokenizer};
use irpa::HubFolder;
use models::SentenceConfig;

use super::engine::{self, DraftSource, Unbuilt};
use super::source::{CONTEXT, OpenWarning, Source};
use super::text::ModelText;
use super::{Inner, Model, ModelError, ModelInfo, OpenOptions, STACK, Speculation, with_room};
use crate::Plan;
use crate::export::IreeManifest;

/// A model of which configuration, tokenizer and stop tokens are read, and the network is not built yet. What is wrong with its
/// files is known by now, before anything slow begins.
///
/// [`Model::open`] does all at once. This is for a program that chooses options by what it reads, such as the context by the
/// length of a prompt.
pub struct Opening {
    /// The options, which may be changed before the network is built.
    pub options: OpenOptions,
    source: Source,
    text: ModelText,
    warnings: Vec<OpenWarning>,
}

impl Opening {
    /// Reads the files of a model. Of a folder `models--ORG--NAME` of the Hugging Face cache these are the files of its snapshot.
    ///
    /// # Errors
    /// If something is missing, damaged, or not supported; or if an export was made with other options.
    pub fn read(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, ModelError> {
        let hub = HubFolder::at(path.as_ref());
        let path = hub.as_ref().map(HubFolder::snapshot).transpose()?.unwrap_or(path.as_ref());
        let (source, warnings) = Source::read(path, &options)?;
        let text = ModelText::read(path, &source, &options)?;
        Ok(Self { options, source, text, warnings })
    }

    /// The tokenizer, if the model has one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.text.tokenizer.as_deref()
    }

    /// The tokens that end a text.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.text.stop_tokens
    }

    /// What the model's user should know, though it opens.
    pub fn warnings(&self) -> &[OpenWarning] {
        &self.warnings
    }

    /// Whether it is an export, which needs no compiler.
    pub fn is_export(&self) -> bool {
        matches!(self.source, Source::Export(..))
    }

    /// What the manifest of an export contains, if it is one.
    pub fn manifest(&self) -> Option<&IreeManifest> {
        match &self.source {
            Source::Export(manifest, _) => Some(manifest),
            _ => None,
        }
    }

    /// The most tokens that the model was made for, if its configuration is there.
    pub fn max_context(&self) -> Option<usize> {
        match &self.source {
            Source::Export(_, longest) => *longest,
            Source::Checkpoint(model) => Some(model.max_context()),
            Source::Embedding(config) => Some(config.sentence.max_tokens),
        }
    }

    /// The longest sequence that the network will take.
    pub fn context(&self) -> usize {
        match &self.source {
            Source::Export(manifest, _) => manifest.context,
            Source::Checkpoint(model) => self.options.context.unwrap_or(model.max_context().min(CONTEXT)),
            Source::Embedding(config) => self.options.context.unwrap_or(config.sentence.max_tokens),
        }
    }

    /// The number of token ids, if the configuration is there.
    pub fn vocabulary(&self) -> Option<usize> {
        match &self.source {
            Source::Export(..) => None,
            Source::Checkpoint(model) => Some(model.vocabulary()),
            Source::Embedding(config) => Some(config.vocab_size),
        }
    }

    /// What an embedding does to a text first.
    pub fn sentence(&self) -> Option<&SentenceConfig> {
        self.text.sentence.as_ref()
    }

    /// Whether the model can follow these options.
    ///
    /// # Errors
    /// If a setting is out of range, a schema or a grammar cannot be followed, or text is asked for without a tokenizer.
    pub fn check_options(&self, options: &GenerateOptions) -> Result<(), GenerateError> {
        self.text.token_options(options).map(drop)
    }

    /// The text of a conversation, as [`Model::render`].
    ///
    /// # Errors
    /// As [`Model::render`].
    pub fn render(&self, chat: &Chat) -> Result<String, ModelError> {
        self.text.renderer.render(chat)
    }

    /// Chooses a context that holds this many tokens, unless the options name one: a power of two, so that few different modules
    /// are compiled, up to the model's own limit. An export has the context that it was made with.
    pub fn fit_context(&mut self, tokens: usize) {
        if let (Source::Checkpoint(model), None) = (&self.source, self.options.context) {
            self.options.context = Some(Plan::context_for(tokens, model.max_context()));
        }
    }

    /// The model that drafts, if the options name one.
    fn draft(&self) -> Result<Option<DraftSource>, ModelError> {
        let Speculation::Draft(draft) = &self.options.speculate else { return Ok(None) };
        let hub = HubFolder::at(draft);
        let draft = hub.as_ref().map(HubFolder::snapshot).transpose()?.unwrap_or(draft);
        let mut options = self.options.of_draft();
        let (source, _) = Source::read(draft, &options)?;
        if let Source::Checkpoint(model) = &source {
            options.context = Some(self.context().min(model.max_context()));
        }
        let tokenizer = with_room(|| Tokenizer::load(draft))??;
        let is_same = match (&tokenizer, self.tokenizer()) {
            (Some(draft), Some(own)) => own.has_tokens_of(draft),
            (None, None) => true,
            _ => false,
        };
        match is_same {
            true => Ok(Some(DraftSource { path: draft.into(), source, options })),
            false => Err(ModelError::DraftTokenizer { draft: draft.into(), path: self.text.path.clone() }),
        }
    }

    /// Builds the network.
    ///
    /// # Errors
    /// If it does not fit into memory, or does not compile, bake or load; or if the draft model does not.
    pub fn build(self) -> Result<Model, ModelError> {
        let draft = self.draft()?;
        let Self { options, source, text, warnings } = self;
        let (path, tokenizer) = (text.path.clone(), text.tokenizer.clone());
        let unbuilt = Unbuilt { path, source, tokenizer, options, draft };
        let (jobs, asked) = channel();
        let (tell, built) = channel();
        let thread = thread::Builder::new().name("engine".into()).stack_size(STACK);
        let engine = thread.spawn(move || engine::run(unbuilt, &tell, &asked)).map_err(ModelError::Thread)?;
        // Nothing comes only from an engine that panicked, which the panic reports.
        let info = built.recv().map_err(|_| ModelError::Gone)??;
        let info = ModelInfo { warnings, ..info };
        let (jobs, engine) = (Mutex::new(Some(jobs)), Mutex::new(Some(engine)));
        let inner = Inner { text, info, jobs, engine };
        Ok(Model { inner: Arc::new(inner) })
    }
}
