//! [`ServeOptions`]: a plain struct with defaults.

use std::time::Duration;

use tracewright::GenerateOptions;

use crate::ApiKeys;

/// Options of a [`Server`](crate::Server).
#[derive(Clone)]
pub struct ServeOptions {
    /// The options of a request that sets none.
    pub defaults: GenerateOptions,
    /// The keys that give access. `None` gives access to everybody who reaches the port.
    pub keys: Option<ApiKeys>,
    /// Web pages of these origins may read answers, such as `http://localhost:5173`; `*` stands for all.
    pub allowed_origins: Vec<String>,
    /// The largest body of a request, in bytes.
    pub max_body: usize,
    /// The requests that may be answered or wait at the same time. Further ones get the status 503.
    pub max_requests: usize,
    /// The time for a client to send its headers, and again for its body.
    pub read_timeout: Duration,
    /// How long running answers may go on after the server was asked to stop.
    pub drain: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            defaults: GenerateOptions::default(),
            keys: None,
            allowed_origins: Vec::new(),
            max_body: 16 << 20,
            max_requests: 1024,
            read_timeout: Duration::from_secs(30),
            drain: Duration::from_secs(30),
        }
    }
}
