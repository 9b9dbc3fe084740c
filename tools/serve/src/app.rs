//! [`App`] contains the data that all requests share.

use std::sync::Arc;

use axum::body::Body;
use axum::http::HeaderMap;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::failure::Failure;
use crate::interface::Interface;
use crate::metrics::Metrics;
use crate::models::Models;
use crate::permit::Permit;
use crate::stored::{Owner, ResponseStore};
use crate::{ServeOptions, access, body};

/// The number of requests for which the server renders and tokenizes the prompt in parallel.
const PREPARED: usize = 8;

/// The number of requests for embeddings that can run or wait for the engine at the same time.
const EMBEDDED: usize = 32;

/// The number of audio files that the server has in memory at the same time. An hour of audio takes 230 MB.
const HEARD: usize = 2;

/// The data that all requests share.
pub struct App {
    pub models: Models,
    pub options: ServeOptions,
    pub metrics: Arc<Metrics>,
    pub responses: Arc<ResponseStore>,
    permits: Arc<Semaphore>,
    prepared: Semaphore,
    embedded: Semaphore,
    heard: Arc<Semaphore>,
    /// Tells all answers to end.
    pub closing: watch::Sender<bool>,
    /// Whether only this machine can reach the server.
    pub is_local: bool,
}

impl App {
    pub fn new(models: Models, options: ServeOptions, is_local: bool) -> Self {
        let permits = Arc::new(Semaphore::new(options.max_requests));
        let prepared = Semaphore::new(PREPARED);
        let embedded = Semaphore::new(EMBEDDED);
        Self {
            models,
            options,
            metrics: Arc::default(),
            responses: Arc::default(),
            permits,
            prepared,
            embedded,
            heard: Arc::new(Semaphore::new(HEARD)),
            closing: watch::channel(false).0,
            is_local,
        }
    }

    /// Returns a permit to answer a request, or an error at the largest number of requests.
    pub fn permit(&self) -> Result<Permit, Failure> {
        let most = self.options.max_requests;
        let place = self.permits.clone().try_acquire_owned().map_err(|_| Failure::Busy { most })?;
        Ok(Permit::new(place, self.closing.subscribe()))
    }

    /// Waits for the right to have an audio file in memory, at most for the time in which its bytes would arrive.
    pub async fn hearing(&self) -> Result<OwnedSemaphorePermit, Failure> {
        let place = tokio::time::timeout(self.options.read_timeout, self.heard.clone().acquire_owned());
        let place = place.await.map_err(|_| Failure::Busy { most: HEARD })?;
        place.map_err(|error| Failure::Server { why: error.to_string() })
    }

    /// Returns who owns the responses to a request.
    pub fn owner(&self, headers: &HeaderMap) -> Owner {
        self.options.keys.as_ref().map(|_| access::hash(headers))
    }

    /// Reads the body of a request as a JSON object.
    pub async fn read(&self, headers: &HeaderMap, body: Body) -> Result<Value, Failure> {
        body::read(headers, body, &self.options).await
    }

    /// Reads the body of a request, and rejects fields that the interface lacks.
    pub async fn read_as(
        &self,
        interface: &Interface,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Value, Failure> {
        let body = self.read(headers, body).await?;
        interface.check(&body)?;
        Ok(body)
    }

    /// Runs slow work on another thread, because slow work must not block the threads for network traffic.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        place(&self.prepared, work).await
    }

    /// Computes embeddings on a thread that may block, with a limit of their own, so text does not wait.
    pub async fn embedding<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        place(&self.embedded, work).await
    }
}

/// Waits for a permit of the semaphore `places`, and then runs `work` on a thread that may block.
async fn place<T: Send + 'static>(
    places: &Semaphore,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let server = |why: String| Failure::Server { why };
    let _place = places.acquire().await.map_err(|error| server(error.to_string()))?;
    tokio::task::spawn_blocking(work).await.map_err(|error| server(error.to_string()))?
}
