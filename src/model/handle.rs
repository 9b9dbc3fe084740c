//! [`Model`] is a handle to an open model and its engine thread.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use generate::{Chat, GenerationDefaults, SavedSequence, Tokenizer};

use super::adapters::{Adapters, LoadedAdapter};
use super::engine::generates_text;
use super::error::ModelError;
use super::image_prompt::ImageReader;
use super::jobs::{EmbedJob, Embedded, Job, ModelInfo};
use super::text::ModelText;

/// An open model.
///
/// A clone of a `Model` is another handle to the same model. Several threads can use handles of the
/// same model at the same time. An engine thread runs the network and continues up to
/// [`OpenOptions::slots`](super::OpenOptions::slots) sequences in parallel. Additional ones wait until a place in the batch is
/// free. The engine thread ends after the last handle and the last [`Pieces`](super::Pieces) were dropped.
///
/// ```no_run
/// use tracewright::{Model, user};
///
/// let model = Model::open("SmolLM2-135M-Instruct.gguf")?;
/// for piece in model.chat([user("Why is the sky blue?")])?.max_tokens(64) {
///     print!("{}", piece?);
/// }
/// # Ok::<(), tracewright::ModelError>(())
/// ```
#[derive(Clone)]
pub struct Model {
    pub(super) inner: Arc<Inner>,
    /// The adapter of all requests.
    pub(super) adapter: Option<Arc<LoadedAdapter>>,
}

/// The data that all handles of a model share.
pub(super) struct Inner {
    pub text: Arc<ModelText>,
    pub info: ModelInfo,
    /// For a model that reads images, and was opened to do so.
    pub images: Option<ImageReader>,
    /// For a model whose requests choose adapters.
    pub adapters: Option<Arc<Adapters>>,
    /// The channel to the engine thread, or `None` after the last handle was dropped.
    pub jobs: Mutex<Option<Sender<Job>>>,
    pub engine: Mutex<Option<JoinHandle<()>>>,
}

impl Model {
    /// Returns the properties of the model, such as its context length, and of its build.
    pub fn info(&self) -> &ModelInfo {
        &self.inner.info
    }

    /// Returns the model's tokenizer, or `None` if the model has no tokenizer.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.inner.text.tokenizer.as_deref()
    }

    /// Returns the ids of the tokens that end a generated text.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.inner.text.stop_tokens
    }

    /// Returns the options of `generation_config.json`, with which requests and conversations begin.
    pub fn defaults(&self) -> &GenerationDefaults {
        &self.inner.text.defaults
    }

    /// Renders a conversation with the model's chat template, and returns the text. A chat template is an
    /// untrusted program that comes with the model. Tracewright renders the template under limits, in this
    /// process or with the program that
    /// [`OpenOptions::template_program`](super::OpenOptions::template_program) sets.
    pub fn render(&self, chat: &Chat) -> Result<String, ModelError> {
        self.inner.text.renderer.render(chat)
    }

    /// Lists the inputs that the chat template does not read: `tools`, or names of variables. Empty with
    /// [`OpenOptions::template_program`](super::OpenOptions::template_program).
    pub fn unread_by_template(&self, chat: &Chat) -> Result<Vec<String>, ModelError> {
        self.inner.text.renderer.unread(chat)
    }

    /// Computes the logits after each token, as f32 [tokens, vocabulary]. Unless you set
    /// [`OpenOptions::score`](super::OpenOptions::score), the first call builds the entry point.
    pub fn score(&self, tokens: &[u32]) -> Result<Vec<Vec<f32>>, ModelError> {
        self.check_base("compute scores with an adapter")?;
        let (answer, scored) = channel();
        self.inner.ask(Job::Score(tokens.to_vec(), answer))?;
        scored.recv().map_err(|_| ModelError::Gone)?
    }

    /// Copies the longest prefix of `tokens` that is computed, with the state (such as the KV cache) after
    /// it.
    pub fn save(&self, tokens: &[u32]) -> Result<SavedSequence, ModelError> {
        self.check_base("save the state of an adapter")?;
        let (answer, saved) = channel();
        self.inner.ask(Job::Save(tokens.to_vec(), answer))?;
        saved.recv().map_err(|_| ModelError::Gone)?
    }

    /// Puts a saved sequence into a free place of the batch, for requests that [reuse
    /// state](super::Request::reuse) and begin with its tokens.
    pub fn load(&self, saved: SavedSequence) -> Result<(), ModelError> {
        let (answer, loaded) = channel();
        self.inner.ask(Job::Load(Box::new(saved), answer))?;
        loaded.recv().map_err(|_| ModelError::Gone)?
    }

    /// Computes embeddings, as f32 [texts, features]. `prompt_name` selects a prompt of the model, such as
    /// `query`, or `None` its default.
    pub fn embed(&self, texts: &[&str], prompt_name: Option<&str>) -> Result<Vec<Vec<f32>>, ModelError> {
        Ok(self.embed_tokens(self.embedding_prompts(texts, prompt_name)?)?.embeddings)
    }

    /// The names of an embedding model's prompts, such as `query`.
    pub fn prompt_names(&self) -> impl Iterator<Item = &str> {
        self.inner.text.sentence.iter().flat_map(|sentence| sentence.prompts.keys()).map(String::as_str)
    }

    /// The tokens that [`embed`](Self::embed) reads, with those of the model's prompt and special tokens.
    pub fn embedding_prompts(
        &self,
        texts: &[&str],
        prompt_name: Option<&str>,
    ) -> Result<Vec<Vec<u32>>, ModelError> {
        self.check_embeds()?;
        let tokenizer = self.inner.text.tokenizer()?;
        let prompt = match &self.inner.text.sentence {
            Some(sentence) => sentence.prompt(prompt_name)?,
            None => "",
        };
        let tokens = texts.iter().map(|text| tokenizer.encode(&format!("{prompt}{text}")));
        Ok(tokens.collect::<Result<Vec<_>, _>>()?)
    }

    /// Computes embeddings of texts. Each text is a list of token ids, including special tokens.
    pub fn embed_tokens(&self, texts: Vec<Vec<u32>>) -> Result<Embedded, ModelError> {
        self.check_embeds()?;
        self.embed_job(EmbedJob { tokens: texts, first: Vec::new() })
    }

    fn check_embeds(&self) -> Result<(), ModelError> {
        match &self.inner.text.sentence {
            Some(sentence) if sentence.pairs.is_some() => {
                let (path, does) = (self.inner.text.path.clone(), "scores pairs of texts");
                Err(ModelError::Kind { path, does, asked: "embed it" })
            }
            Some(_) => Ok(()),
            None => Err(generates_text(&self.inner.text.path)),
        }
    }
}

impl Inner {
    pub fn ask(&self, job: Job) -> Result<(), ModelError> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.as_ref().and_then(|jobs| jobs.send(job).ok()).ok_or(ModelError::Gone)
    }
}

impl Drop for Inner {
    /// Ends the engine thread, and waits until the thread has released the device.
    fn drop(&mut self) {
        drop(self.jobs.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(engine) = self.engine.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            // The panic hook has already reported a panic of the engine thread.
            let _ = engine.join();
        }
    }
}
