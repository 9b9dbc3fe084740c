//! Text in, tokens; tokens out, text: the tokenizer, the chat template, the choice of the next token and the end.
//!
//! Each module answers as Hugging Face transformers answers, token for token and byte for byte.
#![warn(missing_docs)]

mod batch;
mod chat_template;
mod constraint;
mod entry;
mod error;
mod executor;
mod generation;
mod gguf;
mod model_file;
mod network;
mod prefix;
mod reply;
mod row;
mod sample;
mod sequences;
mod session;
mod snapshot;
mod speculate;
mod stop;
mod text;

pub use batch::Batch;
pub use chat_template::chat_template;
pub use constraint::{Constrainer, Constraint};
pub use error::GenerateError;
pub use executor::{CallArgument, Evaluator, Executor, Iree};
pub use generation::{Finish, Generated, TokenOptions};
pub use gguf::gguf_text;
pub use network::{Network, check_tokens};
pub use reply::{Follow, GenerateOptions, Reply};
pub use sample::{
    Breakers, Dry, Logprob, Mirostat, MirostatVersion, Penalties, Sampler, Sampling, SamplingStep,
    TokenLogprobs, Xtc,
};
pub use session::Session;
pub use speculate::{Certainty, DraftModel, Drafter, Lookup};
pub use stop::{StopMatch, StopStrings, stop_tokens};
pub use template::{Chat, ChatTemplate, TemplateError, TemplatePlace};
pub use text::{Stream, Tokenizer, catches_panics};
