//! [`ServeOptions`] contains the options of a server.

use std::time::Duration;

use crate::ApiKeys;

/// Options of a [`Server`](crate::Server).
#[derive(Clone)]
pub struct ServeOptions {
    /// The API keys that clients can use. Without API keys, each client that can reach the port has access.
    pub keys: Option<ApiKeys>,
    /// The origins whose web pages may use the server, such as `http://localhost:5173`; `*` allows all
    /// origins.
    pub allowed_origins: Vec<String>,
    /// The values of the header `Host` that a server on this machine also accepts; `*` accepts all.
    pub allowed_hosts: Vec<String>,
    /// Whether answers can have keys that a schema neither declares nor forbids.
    pub open_objects: bool,
    /// The largest size of a request's body, in bytes.
    pub max_body: usize,
    /// The largest number of requests that the server accepts at the same time, including waiting
    /// requests. When the limit on requests is reached, further requests get the HTTP status 503.
    pub max_requests: usize,
    /// The time limit for receiving the headers of a request, and also for receiving the body.
    pub read_timeout: Duration,
    /// The time without requests after which the server unloads a model. `None` keeps each loaded model.
    pub keep_alive: Option<Duration>,
    /// The most bytes of memory that all loaded models need, as predicted. `None` sets no limit.
    pub memory_limit: Option<u64>,
    /// The longest time that the server waits for running answers after the server has stopped
    /// accepting requests.
    pub drain: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            keys: None,
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            open_objects: false,
            max_body: 16 << 20,
            max_requests: 1024,
            read_timeout: Duration::from_secs(30),
            keep_alive: None,
            memory_limit: None,
            drain: Duration::from_secs(30),
        }
    }
}
