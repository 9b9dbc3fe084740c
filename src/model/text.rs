//! Loads the parts of a model that handle text: the tokenizer, the chat template and the stop tokens.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use generate::{
    ConstraintProcesses, ConstraintProgram, GenerateError, GenerateOptions, GenerationDefaults, TokenOptions,
    Tokenizer, generation_defaults, stop_tokens,
};
use irpa::ModelFiles;
use models::fit::OpenWarning;
use models::{SentenceConfig, VisionFamily};

use super::options::TokenOptionsCache;
use super::render::Renderer;
use super::room::with_room;
use super::source::Source;
use super::speech::Speech;
use super::{ModelError, OpenOptions};

pub(super) struct ModelText {
    pub path: PathBuf,
    pub tokenizer: Option<Arc<Tokenizer>>,
    pub stop_tokens: Vec<u32>,
    pub defaults: GenerationDefaults,
    pub sentence: Option<SentenceConfig>,
    pub speech: Option<Speech>,
    pub renderer: Renderer,
    token_options: TokenOptionsCache,
    constraint_program: Option<ConstraintProgram>,
    processes: OnceLock<ConstraintProcesses>,
}

impl ModelText {
    pub fn read(files: &ModelFiles, source: &Source, options: &OpenOptions) -> Result<Self, ModelError> {
        let mut tokenizer = with_room(|| Tokenizer::load(files))??;
        let sentence = source.sentence().cloned();
        if sentence.as_ref().is_some_and(|sentence| sentence.lowercase) {
            tokenizer = tokenizer.map(Tokenizer::lowercasing).transpose()?;
        }
        let tokenizer = tokenizer.map(Arc::new);
        let stop_tokens = if sentence.is_some() { Vec::new() } else { stop_tokens(files)? };
        let mut defaults =
            if sentence.is_some() { GenerationDefaults::default() } else { generation_defaults(files)? };
        let speech = source
            .speech()
            .map(|config| Speech::read(files.path(), config, tokenizer.as_deref(), &mut defaults));
        let speech = speech.transpose()?;
        // Gemma's templates also read a content that is a text.
        let reads_parts = source.vision().is_some_and(|vision| vision.family == VisionFamily::SmolVlm);
        let renderer = Renderer::new(files, options.template_program.clone(), reads_parts);
        let (path, token_options) = (files.path().to_owned(), TokenOptionsCache::default());
        let (constraint_program, processes) = (options.constraint_program.clone(), OnceLock::new());
        Ok(Self {
            path,
            tokenizer,
            stop_tokens,
            defaults,
            sentence,
            speech,
            renderer,
            token_options,
            constraint_program,
            processes,
        })
    }

    /// Returns a warning for each key of `generation_config.json` that is not applied.
    pub fn warnings(&self) -> impl Iterator<Item = OpenWarning> + '_ {
        let keys = self.defaults.unapplied.iter().cloned();
        keys.map(|(key, found)| OpenWarning::UnappliedKey { key, found })
    }

    pub fn tokenizer(&self) -> Result<&Tokenizer, ModelError> {
        self.tokenizer.as_deref().ok_or_else(|| ModelError::NoTokenizer { path: self.path.clone() })
    }

    pub fn speech(&self) -> Result<&Speech, ModelError> {
        self.speech.as_ref().ok_or_else(|| {
            let does = if self.sentence.is_some() { "reads texts only" } else { "continues text" };
            ModelError::Kind { path: self.path.clone(), does, asked: "transcribe speech" }
        })
    }

    pub fn token_options(&self, options: &GenerateOptions) -> Result<TokenOptions, GenerateError> {
        self.token_options.get(options, || {
            let processes = if options.follow.is_some() { self.processes()? } else { None };
            options.in_tokens_within(self.tokenizer.as_deref(), &self.stop_tokens, processes)
        })
    }

    /// Returns the processes that follow schemas and grammars, or `None` if this process does so.
    fn processes(&self) -> Result<Option<&ConstraintProcesses>, GenerateError> {
        let (Some(program), Some(tokenizer)) = (&self.constraint_program, &self.tokenizer) else {
            return Ok(None);
        };
        if self.processes.get().is_none() {
            // Another thread may have set an equal value.
            let _ = self.processes.set(ConstraintProcesses::new(program.clone(), tokenizer)?);
        }
        Ok(self.processes.get())
    }
}
