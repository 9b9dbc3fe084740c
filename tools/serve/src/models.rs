//! Finds models by name. The server loads a model when a request names it, and can unload it when it is idle.

use std::error::Error;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use errors::{escaped, shortened};
use generate::{GenerationDefaults, Tokenizer};
use tokio::runtime::Handle;
use tracewright::model::NamedAdapter;
use tracewright::runtime::give_back_memory;
use tracewright::{GenerateOptions, Model, ModelError};

use crate::ServeError;
use crate::failure::{Failure, causes};
use crate::ids::now;
use crate::memory::{HeldMemory, MemoryLedger};
use crate::sync::lock;

/// A function that opens a model of the server. The server calls `OpenModel` on a thread that may block.
pub type OpenModel = Box<dyn Fn() -> Result<Model, Box<dyn Error + Send + Sync>> + Send + Sync>;

/// A function that predicts the memory of a model in bytes, without opening it.
pub type PredictMemory = Box<dyn Fn() -> Result<u64, Box<dyn Error + Send + Sync>> + Send + Sync>;

/// A function that returns the options of an answer, from the options that the model's files set. A request can
/// override these options.
pub type AnswerDefaults = Arc<dyn Fn(&GenerationDefaults) -> GenerateOptions + Send + Sync>;

/// A model of the server, which requests select by name.
pub struct ServedModel {
    /// The name by which requests select the model.
    pub name: String,
    /// Other names by which requests select the model.
    pub aliases: Vec<String>,
    /// All options of the model except `defaults`. If a later list has a model with the same name and settings, it stays
    /// loaded.
    pub settings: String,
    /// The function that returns the options of an answer.
    pub defaults: AnswerDefaults,
    /// The adapters that `open` loads, whose names requests use in place of the model's name.
    pub adapters: Vec<NamedAdapter>,
    /// The time without requests after which the server unloads the model; `None` for the server's time.
    pub keep_alive: Option<Duration>,
    /// The function that opens the model.
    pub open: OpenModel,
    /// The function that predicts the model's memory, which only a server with a limit calls.
    pub memory: PredictMemory,
}

/// Checks that no two models have the same name or alias.
pub fn check_names(names: &[String]) -> Result<(), ServeError> {
    let again = names.iter().enumerate().find(|(i, name)| names[..*i].contains(name));
    again.map_or(Ok(()), |(_, name)| Err(ServeError::Name { name: name.clone() }))
}

/// A loaded model, and data that the server needs to create answers.
pub struct Loaded {
    pub name: String,
    pub model: Model,
    pieces: OnceLock<Vec<Vec<u8>>>,
    defaults: Arc<Mutex<AnswerDefaults>>,
    memory: Option<HeldMemory>,
    /// Dropped after `model`, and then another thread frees the model.
    gate: Option<Sender<()>>,
    /// The model of an adapter, which stays loaded as long as this.
    base: Option<Arc<Loaded>>,
}

impl Drop for Loaded {
    /// Freeing a model waits for its engine thread, which the threads for network traffic must not do.
    fn drop(&mut self) {
        if self.base.is_some() {
            return;
        }
        let ((gate, model_is_dropped), model) = (channel::<()>(), self.model.clone());
        let memory = self.memory.take();
        if let Ok(runtime) = Handle::try_current() {
            self.gate = Some(gate);
            runtime.spawn_blocking(move || {
                // Ends with an error, because nothing is sent.
                let _ = model_is_dropped.recv();
                drop(model);
                give_back_memory();
                drop(memory);
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

    /// Returns the options of an answer, which a request can override.
    pub fn defaults(&self) -> GenerateOptions {
        let defaults = lock(&self.defaults).clone();
        defaults(self.model.defaults())
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

    /// Returns the model with an adapter.
    fn with_adapter(self: Arc<Self>, name: &str) -> Result<Arc<Self>, Failure> {
        let (model, name) = (self.model.with_adapter(name)?, name.to_owned());
        let (pieces, defaults, memory, gate) = (OnceLock::new(), self.defaults.clone(), None, None);
        Ok(Arc::new(Self { name, model, pieces, defaults, memory, gate, base: Some(self) }))
    }

    /// Returns the bytes of a token.
    pub fn piece(&self, token: u32) -> &[u8] {
        if let Some(base) = &self.base {
            return base.piece(token);
        }
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
    aliases: Vec<String>,
    settings: String,
    /// A later list of models can replace the function.
    defaults: Arc<Mutex<AnswerDefaults>>,
    /// All adapters, also those that requests have loaded.
    adapters: Mutex<Vec<NamedAdapter>>,
    open: OpenModel,
    memory: PredictMemory,
    predicted: OnceLock<u64>,
    /// The time without requests after which the server unloads the model, unless a request sets another.
    usual_keep_alive: Option<Duration>,
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
    /// The name of its model, and its path, for an adapter.
    pub adapter: Option<(String, PathBuf)>,
}

/// All models of a server.
#[derive(Clone)]
pub struct Models {
    entries: Arc<Mutex<Vec<Arc<Entry>>>>,
    /// The time without requests after which the server unloads a model that sets no other.
    keep_alive: Option<Duration>,
    /// The most bytes of all loaded models.
    limit: Option<u64>,
    ledger: Arc<MemoryLedger>,
    /// Held while a model waits for the memory of others.
    making_room: Arc<tokio::sync::Mutex<()>>,
    /// The time when the server started, in seconds since 1970.
    pub since: u64,
}

impl Models {
    pub fn new(models: Vec<ServedModel>, keep_alive: Option<Duration>, limit: Option<u64>) -> Self {
        let (entries, ledger, making_room) = (Arc::default(), Arc::default(), Arc::default());
        let models_of = Self { entries, keep_alive, limit, ledger, making_room, since: now() };
        models_of.replace(models);
        models_of
    }

    /// Serves other models from now on. A model with the same name and settings stays loaded, and running answers of the
    /// others end as usual.
    pub fn replace(&self, models: Vec<ServedModel>) {
        let mut entries = lock(&self.entries);
        let entry = |model: ServedModel| {
            let is_same = |old: &&Arc<Entry>| old.name == model.name && old.settings == model.settings;
            if let Some(same) = entries.iter().find(is_same) {
                *lock(&same.defaults) = model.defaults;
                return same.clone();
            }
            let usual_keep_alive = model.keep_alive.or(self.keep_alive);
            let ServedModel { name, aliases, settings, defaults, adapters, open, memory, .. } = model;
            Arc::new(Entry {
                name,
                aliases,
                settings,
                defaults: Arc::new(Mutex::new(defaults)),
                adapters: Mutex::new(adapters),
                open,
                memory,
                predicted: OnceLock::new(),
                usual_keep_alive,
                opening: tokio::sync::Mutex::default(),
                used: Mutex::default(),
                last: Mutex::default(),
                keep_alive: Mutex::new(usual_keep_alive),
            })
        };
        let new = models.into_iter().map(entry).collect();
        *entries = new;
    }

    fn entries(&self) -> Vec<Arc<Entry>> {
        lock(&self.entries).clone()
    }

    pub fn list(&self) -> impl Iterator<Item = ListedModel> {
        self.entries().into_iter().flat_map(|entry| entry.listed_all())
    }

    /// Returns the models that are loaded.
    pub fn loaded(&self) -> impl Iterator<Item = Arc<Loaded>> {
        self.entries().into_iter().filter_map(|entry| entry.listed().loaded)
    }

    /// Returns the model with this name, or the first model, and loads nothing.
    pub fn find(&self, name: Option<&str>) -> Result<ListedModel, Failure> {
        Ok(match self.named(name)? {
            (entry, Some(adapter)) => entry.listed_adapter(&adapter),
            (entry, None) => entry.listed(),
        })
    }

    /// Returns the model with the name `name`, or the server's first model if `name` is `None`. A request for a model
    /// that is not loaded waits until it is.
    pub async fn get(&self, name: Option<&str>) -> Result<Arc<Loaded>, Failure> {
        let (entry, adapter) = self.named(name)?;
        let loaded = self.get_entry(entry).await?;
        let Some(NamedAdapter { name, .. }) = adapter else { return Ok(loaded) };
        loaded.with_adapter(&name).map_err(|_| self.unknown(&name))
    }

    async fn get_entry(&self, entry: Arc<Entry>) -> Result<Arc<Loaded>, Failure> {
        *lock(&entry.keep_alive) = entry.usual_keep_alive;
        if let Some(loaded) = entry.current() {
            return Ok(loaded);
        }
        // If the client disconnects, the server continues to load the model.
        let models = self.clone();
        let task = tokio::spawn(async move { entry.load(&models).await });
        task.await.unwrap_or_else(|error| Err(Failure::Server { why: error.to_string() }))
    }

    /// Adds an adapter to the model with the name `of`, or to the first model.
    pub async fn load_adapter(&self, of: Option<String>, adapter: NamedAdapter) -> Result<(), Failure> {
        // If the client disconnects, the server continues to load the adapter.
        let models = self.clone();
        let task = tokio::spawn(async move { models.add_adapter(of.as_deref(), adapter).await });
        task.await.unwrap_or_else(|error| Err(Failure::Server { why: error.to_string() }))
    }

    async fn add_adapter(&self, of: Option<&str>, adapter: NamedAdapter) -> Result<(), Failure> {
        let is_model = self.entry(Some(&adapter.name)).is_ok();
        if is_model || self.adapter(Some(&adapter.name)).is_some() {
            let expected = "a name that no model and no adapter has";
            return Err(Failure::field("lora_name", escaped(&adapter.name), expected));
        }
        let entry = self.entry(of)?;
        let loaded = self.get_entry(entry.clone()).await?;
        let (model, new) = (loaded.model.clone(), adapter.clone());
        let task = tokio::task::spawn_blocking(move || model.load_adapter(new)).await;
        task.map_err(|error| Failure::Server { why: error.to_string() })??;
        tracing::info!("`{}` is loaded for `{}`", adapter.name, entry.name);
        lock(&entry.adapters).push(adapter);
        Ok(())
    }

    /// Removes an adapter. Running answers keep it until they end.
    pub async fn unload_adapter(&self, name: &str) -> Result<(), Failure> {
        let Some((entry, adapter)) = self.adapter(Some(name)) else { return Err(self.unknown(name)) };
        let _opening = entry.opening.lock().await;
        // A model that is unloaded while it answers can return to the list.
        let last = lock(&entry.last).upgrade();
        if let Some(loaded) = last {
            loaded.model.unload_adapter(&adapter.name)?;
        }
        lock(&entry.adapters).retain(|one| one.name != adapter.name);
        tracing::info!("`{name}` is unloaded");
        Ok(())
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
        *lock(&self.named(name)?.0.keep_alive) = keep_alive;
        Ok(())
    }

    /// Unloads the models without running answers whose time without requests is over.
    pub fn unload_idle(&self) {
        for entry in self.entries() {
            if entry.take_idle().is_some() {
                tracing::info!("`{}` is unloaded, because no request names it", entry.name);
            }
        }
    }

    fn entry(&self, name: Option<&str>) -> Result<Arc<Entry>, Failure> {
        let entries = self.entries();
        let is_of = |entry: &&Arc<Entry>, name: &str| {
            entry.name == name || entry.aliases.iter().any(|one| one == name)
        };
        let found = match name {
            None => entries.first(),
            Some(name) => entries.iter().find(|entry| is_of(entry, name)),
        };
        found.cloned().ok_or_else(|| self.unknown(name.unwrap_or_default()))
    }

    /// The adapter with this name, and its model.
    /// The model with this name, or else the adapter and its model. After the list of models has changed, a model can
    /// have the name of an adapter.
    fn named(&self, name: Option<&str>) -> Result<(Arc<Entry>, Option<NamedAdapter>), Failure> {
        self.entry(name).map(|entry| (entry, None)).or_else(|unknown| {
            self.adapter(name).map(|(entry, adapter)| (entry, Some(adapter))).ok_or(unknown)
        })
    }

    fn adapter(&self, name: Option<&str>) -> Option<(Arc<Entry>, NamedAdapter)> {
        let of =
            |entry: &Arc<Entry>| lock(&entry.adapters).iter().find(|one| Some(&*one.name) == name).cloned();
        self.entries().into_iter().find_map(|entry| of(&entry).map(|adapter| (entry, adapter)))
    }

    fn unknown(&self, name: &str) -> Failure {
        let known = self.list().map(|listed| listed.name).collect();
        Failure::Model { name: shortened(escaped(name), 200), known }
    }
}

/// The time that a request waits for other models to end their answers.
const ROOM: Duration = Duration::from_secs(20);

/// The server looks at this interval for a model without running answers.
const LOOK: Duration = Duration::from_millis(100);

impl Models {
    /// Takes the memory of a model. If it is more than the limit leaves, the server unloads the models that are idle for
    /// the longest time.
    ///
    /// `start` is when the request began to wait.
    async fn room(&self, entry: &Arc<Entry>, start: Instant) -> Result<Option<HeldMemory>, Failure> {
        let Some(limit) = self.limit else { return Ok(None) };
        let begun = Instant::now();
        let needs = entry.predicted().await?;
        let mut start = start + begun.elapsed();
        if needs > limit {
            return Err(Failure::Memory { name: entry.name.clone(), needs, limit });
        }
        let _turn = self.making_room.lock().await;
        // The memory in use after all unloaded models are freed.
        let mut expected = self.ledger.used();
        loop {
            if let Some(held) = self.ledger.take(needs, limit) {
                return Ok(Some(held));
            }
            expected = expected.min(self.ledger.used());
            let evicted = if expected.saturating_add(needs) > limit { self.evict(entry) } else { None };
            if let Some((name, bytes)) = evicted {
                tracing::info!("`{name}` is unloaded, because `{}` needs its memory", entry.name);
                expected = expected.saturating_sub(bytes);
                // Its engine gets time to end.
                start = Instant::now();
                continue;
            }
            if start.elapsed() > ROOM {
                return Err(Failure::Crowded { name: entry.name.clone() });
            }
            // The memory of an unloaded model is free after its engine has ended.
            let _ = tokio::time::timeout(LOOK, self.ledger.freed()).await;
        }
    }

    /// Unloads the model without running answers that is idle for the longest time, and returns its name and its
    /// bytes.
    fn evict(&self, but: &Arc<Entry>) -> Option<(String, u64)> {
        let idle = |entry: &Arc<Entry>| {
            let used = entry.used();
            let one = used.as_ref().filter(|one| Arc::strong_count(&one.loaded) == 1)?;
            Some((one.since, entry.clone()))
        };
        let entries = self.entries();
        let others = entries.iter().filter(|entry| !Arc::ptr_eq(entry, but));
        let (_, entry) = others.filter_map(idle).min_by_key(|(since, _)| *since)?;
        let taken = entry.used().take_if(|one| Arc::strong_count(&one.loaded) == 1);
        let bytes = |one: InUse| one.loaded.memory.as_ref().map_or(0, HeldMemory::bytes);
        taken.map(|one| (entry.name.clone(), bytes(one)))
    }
}

impl Entry {
    /// Predicts the memory of the model, once.
    async fn predicted(self: &Arc<Self>) -> Result<u64, Failure> {
        if let Some(&bytes) = self.predicted.get() {
            return Ok(bytes);
        }
        let (entry, name) = (self.clone(), self.name.clone());
        let failed = |why: String| Failure::Load { name: name.clone(), why };
        let predicted = tokio::task::spawn_blocking(move || (entry.memory)()).await;
        let predicted = predicted.map_err(|error| failed(error.to_string()))?;
        let bytes = predicted.map_err(|error| failed(causes(&*error)))?;
        Ok(*self.predicted.get_or_init(|| bytes))
    }

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
            adapter: None,
        }
    }

    fn listed_adapter(&self, adapter: &NamedAdapter) -> ListedModel {
        let of = Some((self.name.clone(), adapter.path.clone()));
        ListedModel { name: adapter.name.clone(), adapter: of, ..self.listed() }
    }

    /// The model, and then its adapters.
    fn listed_all(&self) -> Vec<ListedModel> {
        let adapters = lock(&self.adapters).clone();
        [self.listed()].into_iter().chain(adapters.iter().map(|one| self.listed_adapter(one))).collect()
    }

    /// Gives a model that was opened again the adapters that it had before.
    fn restore_adapters(&self, model: &Model) -> Result<(), ModelError> {
        let (wanted, found) = (lock(&self.adapters).clone(), model.adapters());
        for adapter in found.iter().filter(|one| !wanted.contains(one)) {
            model.unload_adapter(&adapter.name)?;
        }
        wanted.into_iter().filter(|one| !found.contains(one)).try_for_each(|one| model.load_adapter(one))
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

    async fn load(self: Arc<Self>, models: &Models) -> Result<Arc<Loaded>, Failure> {
        let start = Instant::now();
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
        let memory = models.room(&self, start).await?;
        let (opening, name) = (self.clone(), self.name.clone());
        let failed = |why: String| Failure::Load { name: name.clone(), why };
        let open = move || -> Result<Model, Box<dyn Error + Send + Sync>> {
            let model = (opening.open)()?;
            opening.restore_adapters(&model)?;
            // A conversion of weights needs more memory than the model.
            give_back_memory();
            Ok(model)
        };
        let opened = tokio::task::spawn_blocking(open).await;
        let opened = opened.map_err(|error| failed(error.to_string()))?;
        let model = opened.map_err(|error| failed(causes(&*error)))?;
        let (name, pieces, defaults) = (self.name.clone(), OnceLock::new(), self.defaults.clone());
        let (gate, base) = (None, None);
        let loaded = Arc::new(Loaded { name, model, pieces, defaults, memory, gate, base });
        *lock(&self.last) = Arc::downgrade(&loaded);
        *self.used() = Some(InUse { loaded: loaded.clone(), since: Instant::now() });
        Ok(loaded)
    }
}
