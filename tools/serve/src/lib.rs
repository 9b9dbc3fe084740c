//! An HTTP server for open models. Clients of OpenAI's API can use this server without changes. The server
//! reads requests, renders chat templates, and converts events of the engine to answers. Each model has an
//! engine thread, which generates the answers to several requests in parallel; see [`tracewright::Model`].
//! Without the feature `iree`, this crate is empty.

mod access;
mod adapters;
mod answers;
mod app;
mod audio;
mod body;
mod chat;
mod closed;
mod cohere;
mod collect;
mod completions;
mod connection;
mod constraint;
mod embeddings;
mod error;
mod failure;
mod generation;
mod ids;
mod infill;
mod interface;
mod keep_alive;
mod listener;
mod loading;
mod logprobs;
mod media;
mod memory;
mod messages;
mod metrics;
mod models;
mod multipart;
mod nested;
mod ollama;
mod openapi;
mod options;
mod page;
mod permit;
mod prepare;
mod props;
mod reader;
mod rerank;
mod responses;
mod routes;
mod sampling;
mod stored;
mod stream;
mod sync;
mod tokens;
mod tools;
mod update;

pub use access::ApiKeys;
pub use error::ServeError;
pub use listener::{Server, ServerEvent};
pub use models::{AnswerDefaults, OpenModel, PredictMemory, ServedModel, check_names};
pub use options::ServeOptions;
