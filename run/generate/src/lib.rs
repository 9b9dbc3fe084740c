//! Generates text with a compiled network: tokenizer, sampler and calls. Each module gives the same results
//! as Hugging Face transformers, token for token and byte for byte.
#![warn(missing_docs)]

mod ahead;
mod batch;
mod calls;
mod chat_template;
mod constraint;
mod constraint_program;
mod defaults;
mod device_tensor;
mod entry;
mod error;
mod executor;
mod features;
mod generation;
mod gguf;
mod low_rank;
mod model_file;
mod network;
mod prefix;
mod prompt;
mod reply;
mod sample;
mod saved;
mod schedule;
mod schema_error;
mod sequence;
mod sequences;
mod session;
mod snapshot;
mod speculate;
mod stop;
mod text;
mod xla;

pub use batch::Batch;
pub use chat_template::{TemplateSource, chat_template};
pub use constraint::crash::allow_crashes;
pub use constraint::process::{ConstraintProcesses, answer_constraints};
pub use constraint::{Constrainer, Constraint};
pub use constraint_program::{ConstraintLimit, ConstraintProgram};
pub use defaults::{GenerationDefaults, generation_defaults};
pub use device_tensor::{DeviceTensor, XlaBuffer};
pub use error::{GenerateError, SavedFault};
pub use executor::{CallArgument, Evaluator, Executor, Iree, LaterModules, Patience};
pub use features::Features;
pub use generation::{EndedSequence, Finish, Generated, TokenOptions};
pub use model_file::gguf_text;
pub use network::{MtpModule, Network, check_tokens};
pub use prompt::{EncoderInput, Prompt, PromptPart};
pub use reply::{Follow, GenerateOptions, Reply};
pub use sample::{
    Breakers, Dry, LogitRules, Logprob, Mirostat, MirostatVersion, Penalties, Range, Sampler, Sampling,
    SamplingStep, Setting, SpeechRules, SpeechScores, TextBounds, TimestampRules, TokenLogprobs, Xtc,
};
pub use saved::SavedSequence;
pub use schedule::{Budgeted, Schedule, SequenceWork, Together};
pub use schema_error::{SchemaError, SchemaNote, SchemaSyntaxError};
pub use session::Session;
pub use speculate::{Certainty, DraftModel, Drafter, Lookup, MtpDrafter};
pub use stop::{StopMatch, StopStrings, stop_tokens};
pub use template::{Chat, ChatTemplate, TemplateError, TemplatePlace};
pub use text::{EncodedPair, Stream, Tokenizer, catches_panics};
pub use xla::{Xla, XlaFunction};
