//! Ollama's interface: `/api/chat`, `/api/generate`, `/api/embed`, and lists of models. Answers are lines of JSON.

mod answer;
mod embed;
mod lists;
mod options;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub use answer::{CHAT, GENERATE, chat, generate};
pub use embed::{EMBED, EMBEDDINGS, embed, embeddings};
pub use lists::{SHOW, running, show, tags};

use crate::app::App;
use crate::failure::Failure;
use crate::keep_alive::KeepAlive;
use crate::models::Loaded;
use crate::update::Usage;

/// The name of a model without the tag `:latest`, which Ollama's clients add.
fn plain(name: &str) -> &str {
    name.strip_suffix(":latest").unwrap_or(name)
}

/// Loads a model, and keeps it after this request for the time in the field `keep_alive`.
async fn load(app: &App, model: &str, keep_alive: Option<KeepAlive>) -> Result<Arc<Loaded>, Failure> {
    let loaded = app.models.get(Some(model)).await?;
    if let Some(KeepAlive(time)) = keep_alive {
        app.models.keep(Some(model), time)?;
    }
    Ok(loaded)
}

/// The current time as in RFC 3339.
fn created_at() -> String {
    jiff::Timestamp::now().to_string()
}

/// The times of an answer that no usage has.
#[derive(Clone, Copy)]
struct Times {
    start: Instant,
    /// The time that loading the model took.
    load: Duration,
}

impl Times {
    /// Adds all times to the last line of an answer, in nanoseconds.
    fn add_to(&self, line: &mut Value, usage: Usage) {
        for (key, time) in [
            ("total_duration", self.start.elapsed()),
            ("load_duration", self.load),
            ("prompt_eval_duration", usage.prefill),
            ("eval_duration", usage.decode),
        ] {
            line[key] = json!(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        }
    }
}
