//! A known model in a few lines: opened from a folder, a GGUF file or an export; it chats, continues text, scores and embeds.

mod conversation;
mod engine;
mod error;
mod opening;
mod options;
mod render;
mod request;
mod source;
mod text;

use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use generate::{Chat, GenerateOptions, Tokenizer};
use serde_json::{Value, json};

use engine::Job;
use text::ModelText;

pub use conversation::{Conversation, PreparedTurn, Turn};
pub use engine::{Completion, Embedded, ModelInfo};
pub use error::ModelError;
pub use opening::Opening;
pub use options::{OpenOptions, Speculation, TuningSource, UnknownSpeculation, WatchOpen};
pub use render::{TemplateProgram, TemplateRequest};
pub use request::{Pieces, Request};
pub use source::{BuildInfo, OpenWarning};

/// Stack of the threads that read or render what somebody else wrote, which may nest deep. Only what is used is taken.
const STACK: usize = 256 << 20;

/// A model that is open.
///
/// A clone is another handle to the same model. Handles can be used from several threads at once: one thread of the model's own
/// runs the network, and continues as many texts in parallel as [`OpenOptions::slots`] says; further ones wait. It ends when
/// the last handle and the last [`Pieces`] are gone.
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
    inner: Arc<Inner>,
}

/// What all handles share.
struct Inner {
    text: ModelText,
    info: ModelInfo,
    /// `None` once the last handle is gone.
    jobs: Mutex<Option<Sender<Job>>>,
    engine: Mutex<Option<JoinHandle<()>>>,
}

/// A message of the user.
pub fn user(content: impl Into<String>) -> Value {
    message("user", content)
}

/// A message of the system: how the model should behave.
pub fn system(content: impl Into<String>) -> Value {
    message("system", content)
}

/// An earlier answer of the model.
pub fn assistant(content: impl Into<String>) -> Value {
    message("assistant", content)
}

fn message(role: &str, content: impl Into<String>) -> Value {
    json!({ "role": role, "content": content.into() })
}

impl Model {
    /// Opens a Hugging Face folder, a GGUF file, or what `tracewright export` wrote, with the usual options.
    ///
    /// The first time, weights are baked and modules compiled, which takes seconds to minutes; the cache keeps both. Only an
    /// export needs no `iree-compile`.
    ///
    /// # Errors
    /// If something is missing, damaged, or not supported.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        Self::open_with(path, OpenOptions::default())
    }

    /// The same with these options.
    ///
    /// # Errors
    /// As [`open`](Self::open); or if an export was made with other options.
    pub fn open_with(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, ModelError> {
        Opening::read(path, options)?.build()
    }

    /// Context, vocabulary, slots, and how the model was built.
    pub fn info(&self) -> &ModelInfo {
        &self.inner.info
    }

    /// The tokenizer, if the model has one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.inner.text.tokenizer.as_deref()
    }

    /// The tokens that end a text.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.inner.text.stop_tokens
    }

    /// Answers a conversation through the model's chat template. Messages are JSON objects with `role` and `content`, as
    /// [`user`], [`system`] and [`assistant`] make them.
    ///
    /// # Errors
    /// If the model has no tokenizer or no template, or the template refuses the conversation.
    pub fn chat(&self, messages: impl IntoIterator<Item = Value>) -> Result<Request, ModelError> {
        let chat =
            Chat { messages: messages.into_iter().collect(), add_generation_prompt: true, ..Chat::default() };
        let text = self.render(&chat)?;
        Ok(self.continue_tokens(self.inner.text.tokenizer()?.encode_plain(&text)?))
    }

    /// A conversation of several turns, which computes only what each turn adds.
    pub fn conversation(&self) -> Conversation {
        Conversation::new(self.clone())
    }

    /// Continues a text.
    ///
    /// # Errors
    /// If the model has no tokenizer.
    pub fn generate(&self, prompt: &str) -> Result<Request, ModelError> {
        Ok(self.continue_tokens(self.inner.text.tokenizer()?.encode(prompt)?))
    }

    /// Continues token ids.
    pub fn continue_tokens(&self, prompt: impl Into<Vec<u32>>) -> Request {
        let (model, options) = (self.inner.clone(), GenerateOptions::default());
        Request { model, prompt: prompt.into(), options, continues: false }
    }

    /// The text of a conversation, as the model's chat template writes it.
    ///
    /// The template is a program that came with the model. It runs under limits, on a thread of its own, or in a process of its
    /// own where [`OpenOptions::template_program`] names one.
    ///
    /// # Errors
    /// If there is no template, or it fails or refuses the conversation.
    pub fn render(&self, chat: &Chat) -> Result<String, ModelError> {
        self.inner.text.renderer.render(chat)
    }

    /// The logits after each of `tokens`: f32 [tokens, vocabulary].
    ///
    /// The entry point that computes them is built by the first call, unless [`OpenOptions::score`] built it.
    ///
    /// # Errors
    /// If they do not fit into the context, or the call fails.
    pub fn score(&self, tokens: &[u32]) -> Result<Vec<Vec<f32>>, ModelError> {
        let (answer, scored) = channel();
        self.inner.ask(Job::Score(tokens.to_vec(), answer))?;
        scored.recv().map_err(|_| ModelError::Gone)?
    }

    /// Embeddings of texts: f32 [texts, features]. `prompt_name` is one of the model's prompts, such as `query`; `None` for its
    /// usual one.
    ///
    /// # Errors
    /// If the model makes none, has no such prompt, or a text is longer than it takes.
    pub fn embed(&self, texts: &[&str], prompt_name: Option<&str>) -> Result<Vec<Vec<f32>>, ModelError> {
        let tokenizer = self.inner.text.tokenizer()?;
        let prompt = match &self.inner.text.sentence {
            Some(sentence) => sentence.prompt(prompt_name)?,
            None => return Err(engine::continues_text(&self.inner.text.path)),
        };
        let tokens = texts.iter().map(|text| tokenizer.encode(&format!("{prompt}{text}")));
        let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
        Ok(self.embed_tokens(tokens)?.embeddings)
    }

    /// Embeddings of texts that are given as token ids, special ones included.
    ///
    /// # Errors
    /// If the model makes none, or a text is empty or longer than it takes.
    pub fn embed_tokens(&self, texts: Vec<Vec<u32>>) -> Result<Embedded, ModelError> {
        let (answer, embedded) = channel();
        self.inner.ask(Job::Embed(texts, answer))?;
        embedded.recv().map_err(|_| ModelError::Gone)?
    }
}

impl Inner {
    fn ask(&self, job: Job) -> Result<(), ModelError> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.as_ref().and_then(|jobs| jobs.send(job).ok()).ok_or(ModelError::Gone)
    }
}

impl Drop for Inner {
    /// Ends the engine, and waits until it has given back the device.
    fn drop(&mut self) {
        drop(self.jobs.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(engine) = self.engine.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            // A panic was reported where it happened.
            let _ = engine.join();
        }
    }
}

/// Does what may nest deep.
fn with_room<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, ModelError> {
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("text".into()).stack_size(STACK).spawn_scoped(scope, work);
        match worker.map_err(ModelError::Thread)?.join() {
            Ok(done) => Ok(done),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
