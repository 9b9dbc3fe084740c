//! [`Permit`] is the right to answer one request.

use std::sync::Arc;
use std::time::Instant;

use axum::http::HeaderMap;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task_local;

use crate::ids::id;

task_local! {
    /// The id of the request that the current task answers.
    static REQUEST: Arc<str>;
}

/// The longest id of a client that the server keeps.
const LONGEST: usize = 128;

/// Returns the id in the header `x-request-id`, or a new one.
pub fn request_id(headers: &HeaderMap) -> Arc<str> {
    let given = headers.get("x-request-id").and_then(|value| value.to_str().ok());
    let is_plain =
        |id: &&str| (1..=LONGEST).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    given.filter(is_plain).map_or_else(|| id("req_").into(), Into::into)
}

/// Runs the work for a request, which [`Permit::new`] then finds by its task.
pub async fn within<T>(id: Arc<str>, work: impl Future<Output = T>) -> T {
    REQUEST.scope(id, work).await
}

/// The right to answer a request, until the value is dropped.
pub struct Permit {
    pub id: Arc<str>,
    pub start: Instant,
    closing: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
}

impl Permit {
    pub fn new(place: OwnedSemaphorePermit, closing: watch::Receiver<bool>) -> Self {
        let id = REQUEST.try_with(Arc::clone).unwrap_or_default();
        Self { id, start: Instant::now(), closing, _place: place }
    }

    /// Waits until the server ends all answers, because the time for running answers is over.
    pub async fn closed(&mut self) {
        if self.closing.wait_for(|is_closing| *is_closing).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
