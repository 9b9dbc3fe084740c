//! Finds models by name. The server loads a model when the first request with the model's name arrives.

use std::error::Error;
use std::sync::{Arc, OnceLock};

use generate::Tokenizer;
use tokio::sync::OnceCell;
use tracewright::Model;

use crate::ServeError;
use crate::failure::{Failure, causes};
use crate::ids::now;

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

    /// Returns an error if the model does not generate text.
    pub fn check_generates(&self) -> Result<(), Failure> {
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

struct Entry {
    name: String,
    open: OpenModel,
    loaded: OnceCell<Arc<Loaded>>,
}

/// All models of a server.
#[derive(Clone)]
pub struct Models {
    entries: Arc<Vec<Arc<Entry>>>,
    /// The time when the server started, in seconds since 1970.
    pub since: u64,
}

impl Models {
    pub fn new(models: Vec<ServedModel>) -> Self {
        let entry = |ServedModel { name, open }| Arc::new(Entry { name, open, loaded: OnceCell::new() });
        Self { entries: Arc::new(models.into_iter().map(entry).collect()), since: now() }
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// Returns the models that are already loaded.
    pub fn loaded(&self) -> impl Iterator<Item = &Loaded> {
        self.entries.iter().filter_map(|entry| entry.loaded.get()).map(|loaded| &**loaded)
    }

    /// Returns the model with the name `name`, or the server's first model if `name` is `None`. The
    /// first request for a model waits until the model is loaded.
    pub async fn get(&self, name: Option<&str>) -> Result<Arc<Loaded>, Failure> {
        let entry = match name {
            None => self.entries.first(),
            Some(name) => self.entries.iter().find(|entry| entry.name == name),
        };
        let Some(entry) = entry.cloned() else {
            let name = name.unwrap_or_default().to_owned();
            return Err(Failure::Model { name, known: self.names().map(str::to_owned).collect() });
        };
        if let Some(loaded) = entry.loaded.get() {
            return Ok(loaded.clone());
        }
        // If the client disconnects, the server continues to load the model.
        let task = tokio::spawn(async move { entry.load().await });
        task.await.unwrap_or_else(|error| Err(Failure::Server { why: error.to_string() }))
    }
}

impl Entry {
    async fn load(self: Arc<Self>) -> Result<Arc<Loaded>, Failure> {
        let opening = self.clone();
        let loaded = self.loaded.get_or_try_init(|| async move {
            let name = opening.name.clone();
            let failed = |why: String| Failure::Load { name: name.clone(), why };
            let opened = tokio::task::spawn_blocking(move || (opening.open)()).await;
            let opened = opened.map_err(|error| failed(error.to_string()))?;
            let model = opened.map_err(|error| failed(causes(&*error)))?;
            Ok(Arc::new(Loaded { name, model, pieces: OnceLock::new() }))
        });
        loaded.await.cloned()
    }
}
