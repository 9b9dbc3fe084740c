//! Finds models by name. The server loads a model when a request names it, and can unload it when it is idle.

use std::error::Error;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use errors::{escaped, shortened};
use generate::Tokenizer;
use tokio::runtime::Handle;
use tracewright::Model;

use crate::ServeError;
use crate::failure::{Failure, causes};
use crate::ids::now;
use crate::sync::lock;

/// A function that opens a model of the server. The server calls `OpenModel` on a thread that may block.
pub type OpenModel = Box<dyn Fn() -> Result<Model, Box<dyn Error + Send + Sync>> + Send + Sync>;

/// A model of the server, which requests select by name.
pub struct ServedModel {
    /// The name by which requests select the model.
    pub name: String,
    /// The function that opens the model.
    pub open: OpenModel,
}

/// Checks that no two models have the same name.
pub fn check_names(names: &[String]) -> Result<(), ServeError> {
    let again = names.iter().enumerate().find(|(i, name)| names[..*i].contains(name));
    again.map_or(Ok(()), |(_, name)| Err(ServeError::Name { name: name.clone() }))
}

/// A loaded model, and data that the server needs to create answers.
pub struct Loaded {
    pub name: String,
    pub model: Model,
    pieces: OnceLock<Vec<Vec<u8>>>,
    /// Dropped after `model`, and then another thread frees the model.
    gate: Option<Sender<()>>,
}

impl Drop for Loaded {
    /// Freeing a model waits for its engine thread, which the threads for network traffic must not do.
    fn drop(&mut self) {
        let ((gate, model_is_dropped), model) = (channel::<()>(), self.model.clone());
        if let Ok(runtime) = Handle::try_current() {
            self.gate = Some(gate);
            runtime.spawn_blocking(move || {
                // Ends with an error, because nothing is sent.
                let _ = model_is_dropped.recv();
                drop(model);
            });
        }
    }
}

impl Loaded {
    /// Returns the tokenizer, or an error if the model has no tokenizer.
    pub fn tokenizer(&self) -> Result<&Tokenizer, Failure> {
        let without = || self.kind("has no tokenizer", "read or write text");
        self.model.tokenizer().ok_or_else(without)
    }

    /// Whether the model computes embeddings and does not generate text.
    pub fn embeds(&self) -> bool {
        self.model.info().build.is_none()
    }

    /// Whether the model transcribes speech, and does nothing else.
    pub fn transcribes(&self) -> bool {
        self.model.sampling_rate().is_ok()
    }

    /// Returns an error if the model does not generate text.
    pub fn check_generates(&self) -> Result<(), Failure> {
        if self.transcribes() {
            return Err(self.kind("transcribes speech", "continue text"));
        }
        if self.embeds() { Err(self.kind("computes embeddings", "continue text")) } else { Ok(()) }
    }

    pub fn kind(&self, does: &'static str, asked: &'static str) -> Failure {
        Failure::Kind { model: self.name.clone(), does, asked }
    }

    /// Returns the bytes of a token.
    pub fn piece(&self, token: u32) -> &[u8] {
        let pieces =
            self.pieces.get_or_init(|| self.model.tokenizer().map(Tokenizer::pieces).unwrap_or_default());
        pieces.get(token as usize).map_or(&[], Vec::as_slice)
    }
}

/// A loaded model, and when the server last saw it in use.
struct InUse {
    loaded: Arc<Loaded>,
    since: Instant,
}

struct Entry {
    name: String,
    open: OpenModel,
    /// Held while the model is opened.
    opening: tokio::sync::Mutex<()>,
    used: Mutex<Option<InUse>>,
    /// The model that was loaded last, which answers can still use after it is unloaded.
    last: Mutex<Weak<Loaded>>,
    /// The time without requests after which the server unloads the model; `None` for no end.
    keep_alive: Mutex<Option<Duration>>,
}

/// A model of the server, loaded or not.
pub struct ListedModel {
    pub name: String,
    /// Is `None` while the model is not loaded.
    pub loaded: Option<Arc<Loaded>>,
    /// The time until the server unloads the model, if no request comes.
    pub remaining: Option<Duration>,
}

/// All models of a server.
#[derive(Clone)]
pub struct Models {
    entries: Arc<Vec<Arc<Entry>>>,
    /// The time without requests after which the server unloads a model, unless a request sets another.
    keep_alive: Option<Duration>,
    /// The time when the server started, in seconds since 1970.
    pub since: u64,
}

impl Models {
    pub fn new(models: Vec<ServedModel>, keep_alive: Option<Duration>) -> Self {
        let entry = |ServedModel { name, open }| {
            let (opening, used) = (tokio::sync::Mutex::default(), Mutex::default());
            let (keep_alive, last) = (Mutex::new(keep_alive), Mutex::default());
            Arc::new(Entry { name, open, opening, used, last, keep_alive })
        };
        let entries = Arc::new(models.into_iter().map(entry).collect());
        Self { entries, keep_alive, since: now() }
    }

    pub fn list(&self) -> impl Iterator<Item = ListedModel> {
        self.entries.iter().map(|entry| entry.listed())
    }

    /// Returns the models that are loaded.
    pub fn loaded(&self) -> impl Iterator<Item = Arc<Loaded>> {
        self.list().filter_map(|listed| listed.loaded)
    }

    /// Returns the model with this name, or the first model, and loads nothing.
    pub fn find(&self, name: Option<&str>) -> Result<ListedModel, Failure> {
        Ok(self.entry(name)?.listed())
    }

    /// Returns the model with the name `name`, or the server's first model if `name` is `None`. A request for a model
    /// that is not loaded waits until it is.
    pub async fn get(&self, name: Option<&str>) -> Result<Arc<Loaded>, Failure> {
        let entry = self.entry(name)?;
        *lock(&entry.keep_alive) = self.keep_alive;
        if let Some(loaded) = entry.current() {
            return Ok(loaded);
        }
        // If the client disconnects, the server continues to load the model.
        let task = tokio::spawn(async move { entry.load().await });
        task.await.unwrap_or_else(|error| Err(Failure::Server { why: error.to_string() }))
    }

    /// Unloads a model if it is loaded. Running answers end first, and then free its memory.
    pub async fn unload(&self, name: Option<&str>) -> Result<(), Failure> {
        let entry = self.entry(name)?;
        let _opening = entry.opening.lock().await;
        if entry.used().take().is_some() {
            tracing::info!("`{}` is unloaded", entry.name);
        }
        Ok(())
    }

    /// Sets the time after which the server unloads the model, until the next request; `None` for no end.
    pub fn keep(&self, name: Option<&str>, keep_alive: Option<Duration>) -> Result<(), Failure> {
        *lock(&self.entry(name)?.keep_alive) = keep_alive;
        Ok(())
    }

    /// Unloads the models without running answers whose time without requests is over.
    pub fn unload_idle(&self) {
        for entry in &*self.entries {
            if entry.take_idle().is_some() {
                tracing::info!("`{}` is unloaded, because no request names it", entry.name);
            }
        }
    }

    fn entry(&self, name: Option<&str>) -> Result<Arc<Entry>, Failure> {
        let found = match name {
            None => self.entries.first(),
            Some(name) => self.entries.iter().find(|entry| entry.name == name),
        };
        found.cloned().ok_or_else(|| {
            let known = self.entries.iter().map(|entry| entry.name.clone()).collect();
            Failure::Model { name: shortened(escaped(name.unwrap_or_default()), 200), known }
        })
    }
}

impl Entry {
    fn used(&self) -> MutexGuard<'_, Option<InUse>> {
        lock(&self.used)
    }

    fn current(&self) -> Option<Arc<Loaded>> {
        let mut used = self.used();
        let used = used.as_mut()?;
        used.since = Instant::now();
        Some(used.loaded.clone())
    }

    fn listed(&self) -> ListedModel {
        let (used, keep_alive) = (self.used(), *lock(&self.keep_alive));
        let remaining =
            used.as_ref().zip(keep_alive).map(|(used, keep)| keep.saturating_sub(used.since.elapsed()));
        ListedModel {
            name: self.name.clone(),
            loaded: used.as_ref().map(|used| used.loaded.clone()),
            remaining,
        }
    }

    /// Takes the model if no request has used it for the time `keep_alive`.
    fn take_idle(&self) -> Option<InUse> {
        let keep_alive = (*lock(&self.keep_alive))?;
        let mut used = self.used();
        let one = used.as_mut()?;
        if Arc::strong_count(&one.loaded) > 1 {
            one.since = Instant::now();
        }
        used.take_if(|one| one.since.elapsed() >= keep_alive)
    }

    async fn load(self: Arc<Self>) -> Result<Arc<Loaded>, Failure> {
        let _opening = self.opening.lock().await;
        if let Some(loaded) = self.current() {
            return Ok(loaded);
        }
        let running = lock(&self.last).upgrade();
        if let Some(loaded) = running {
            // It was unloaded, but answers still run.
            *self.used() = Some(InUse { loaded: loaded.clone(), since: Instant::now() });
            return Ok(loaded);
        }
        let (opening, name) = (self.clone(), self.name.clone());
        let failed = |why: String| Failure::Load { name: name.clone(), why };
        let opened = tokio::task::spawn_blocking(move || (opening.open)()).await;
        let opened = opened.map_err(|error| failed(error.to_string()))?;
        let model = opened.map_err(|error| failed(causes(&*error)))?;
        let loaded = Arc::new(Loaded { name: self.name.clone(), model, pieces: OnceLock::new(), gate: None });
        *lock(&self.last) = Arc::downgrade(&loaded);
        *self.used() = Some(InUse { loaded: loaded.clone(), since: Instant::now() });
        Ok(loaded)
    }
}
