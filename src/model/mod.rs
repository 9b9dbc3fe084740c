//! [`Model`] opens a known architecture from a folder, a GGUF file or an export, and can chat, continue text,
//! score or embed.

mod adapters;
mod choose;
mod conversation;
mod engine;
mod error;
mod fingerprint;
mod handle;
mod image_prompt;
mod images;
mod jobs;
mod messages;
mod opening;
mod options;
mod render;
mod request;
mod rerank;
mod room;
mod segments;
mod source;
mod speech;
mod subtitles;
mod text;
mod tiles;
mod transcribe;
mod words;

pub use crate::named_adapter::NamedAdapter;
pub use conversation::{Conversation, PreparedTurn, Turn};
pub use error::ModelError;
pub use fingerprint::{Fingerprint, FingerprintText};
pub use handle::Model;
pub use image_prompt::ImagePrompt;
pub use images::{image, read_image};
pub use jobs::{Completion, Embedded, ModelInfo, TextEvent};
pub use messages::{Message, MessagePart, assistant, system, user};
pub use models::fit::OpenWarning;
pub use opening::Opening;
pub use options::{OpenOptions, Speculation, UnknownSpeculation, WatchOpen, cache_folder};
pub use render::{TemplateAnswer, TemplateProgram, TemplateRequest};
pub use request::{Pieces, Request, Running};
pub use rerank::{Ranked, Reranked};
pub use source::{BuildInfo, choose_target};
pub use speech::TranscribeOptions;
pub use transcribe::{SpeechProgress, SpeechSegment, Transcript};
pub use words::SpeechWord;

pub use crate::tuning::TuningSource;
