//! [`GenerateError`]: errors of the tokenizer, the chat template, the sampler and the network.

use std::path::PathBuf;

use errors::FileError;
use template::TemplateError;
use trace::Role;

/// An error of the tokenizer, the chat template, the sampler or the network.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A GGUF file cannot be read.
    #[error(transparent)]
    Gguf(#[from] irpa::ArchiveError),
    /// A file is not valid JSON.
    #[error("`{path}` is not valid JSON", path = path.display())]
    Json {
        /// Path of the JSON file.
        path: PathBuf,
        /// Position and reason in the file.
        source: serde_json::Error,
    },
    /// A key of a JSON file has a value of the wrong type.
    #[error("key `{key}` of `{path}` is `{found}`, expected {expected}", path = path.display())]
    Key {
        /// Path of the JSON file.
        path: PathBuf,
        /// Name of the key in the file.
        key: &'static str,
        /// The value in the file, shortened.
        found: String,
        /// The values that are possible.
        expected: &'static str,
    },
    /// The tokenizers library rejects a `tokenizer.json`.
    #[error("`{path}` is not a tokenizer", path = path.display())]
    Tokenizer {
        /// Path of the tokenizer file.
        path: PathBuf,
        /// The reason that the library gives.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The tokenizer cannot encode a text or decode tokens.
    #[error("the tokenizer cannot {what}")]
    Tokenize {
        /// The operation that failed: encoding or decoding.
        what: &'static str,
        /// The reason that the library gives.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The model has no chat template.
    #[error("`{dir}` has no chat template: expected `chat_template.jinja`, or `chat_template` in `tokenizer_config.json`; give a raw prompt instead", dir = dir.display())]
    NoTemplate {
        /// Path of the model's folder.
        dir: PathBuf,
    },
    /// A chat template cannot be read or rendered.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A sampling setting is out of its range.
    #[error("`{name}` is {found}, expected {expected}")]
    Setting {
        /// Name of the setting in `Sampling`.
        name: &'static str,
        /// The value that was set.
        found: String,
        /// The range of valid values.
        expected: &'static str,
    },
    /// An option needs text, but the model has no tokenizer.
    #[error(
        "`{option}` is about text, and the model has no `tokenizer.json`; use token ids, and leave the option out"
    )]
    NeedsText {
        /// Name of the option in `GenerateOptions`.
        option: &'static str,
    },
    /// A logit is NaN or infinite, so no token can be chosen.
    #[error(
        "step {step}: logit of token {token} is {found}, expected a number below infinity; the weights or the compiled program are broken"
    )]
    Logit {
        /// Index of the token to choose, from 0.
        step: u64,
        /// The token id of the bad logit.
        token: usize,
        /// Value of the bad logit.
        found: f32,
    },
    /// The program chose an id that is not in the vocabulary.
    #[error("the program chose the token {token}, expected one below {vocabulary}; it is broken")]
    Favoured {
        /// The id that the program chose.
        token: u32,
        /// The number of token ids.
        vocabulary: usize,
    },
    /// A text cannot join a batch, because no row is free.
    #[error(
        "all {rows} sequences of the batch are in use; wait until a text ends, or build the program for more"
    )]
    Full {
        /// The number of rows in the batch.
        rows: usize,
    },
    /// A prompt has no tokens.
    #[error("the prompt has no tokens, expected at least one")]
    EmptyPrompt,
    /// A text has more tokens than the context holds.
    #[error(
        "{length} tokens do not fit into the context of {context}; shorten the prompt, or build the program with a longer `context`"
    )]
    TooLong {
        /// The number of tokens that would be needed.
        length: usize,
        /// The number of tokens that the context holds.
        context: usize,
    },
    /// A token id is not in the vocabulary.
    #[error("token {index} of the prompt has the id {token}, expected one below {vocabulary}")]
    Token {
        /// Index of the token in its text, from 0.
        index: usize,
        /// The token id, which is out of range.
        token: u32,
        /// The number of token ids.
        vocabulary: usize,
    },
    /// An entry point lacks a role, or one of its types is wrong.
    #[error("entry point `{name}` {why}")]
    EntryPoint {
        /// Name of the entry point.
        name: String,
        /// The problem, as a phrase for the message.
        why: String,
    },
    /// The decoder runs before an encoder has filled its state.
    #[error(
        "the network reads memory that is not filled; call `Session::encode` first, or give `SequenceInput` a source"
    )]
    NoMemory,
    /// The number of features is not a multiple of a position's, or more than an encoder takes.
    #[error("{found} numbers of features are given, expected {expected}")]
    Features {
        /// The number of features that were given.
        found: usize,
        /// The numbers that are possible.
        expected: String,
    },
    /// The program lacks an entry point that the request needs.
    #[error("the program has no entry point {}", for_what(.role))]
    NoEntryPoint {
        /// The role of an argument or result that such an entry point has.
        role: Role,
    },
    /// The evaluator cannot run an entry point.
    #[error(transparent)]
    Evaluate(#[from] trace::EvaluateError),
    /// IREE failed during a call.
    #[error(transparent)]
    Runtime(#[from] runtime::RuntimeError),
    /// XLA or its plugin failed.
    #[error(transparent)]
    Pjrt(#[from] pjrt::PjrtError),
    /// A tensor belongs to another engine than the executor.
    #[error("a tensor belongs to another engine than the program; pass tensors of the same executor")]
    OtherEngine,
    /// The bytes of the tokenizer's tokens cannot be determined.
    #[error(
        "the tokenizer does not define the bytes of its tokens, which a schema or a grammar needs: its \
         decoder has neither `ByteLevel` nor `ByteFallback`, or its vocabulary is no map"
    )]
    NoBytes {
        /// The reason that the library gives.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file is not the saved sequence that is wanted.
    #[error("`{path}` {fault}; remove the file, or name another", path = path.display())]
    Saved {
        /// The file.
        path: PathBuf,
        /// The difference.
        fault: SavedFault,
    },
    /// A JSON schema is not valid JSON.
    #[error("the schema is not valid JSON")]
    SchemaSyntax {
        /// Position and reason in the schema.
        source: serde_json::Error,
    },
    /// A JSON schema is invalid, or uses an unsupported feature.
    #[error("the schema cannot be followed: {why}")]
    Schema {
        /// The reason that the library gives.
        why: String,
    },
    /// A grammar is not valid.
    #[error("the grammar is not valid{}: {why}", place(.at))]
    Grammar {
        /// Line and column of the error, from 1.
        at: Option<(usize, usize)>,
        /// The reason that the library gives.
        why: String,
    },
    /// A schema or a grammar needs more work than the library's limit.
    #[error("step {step}: the schema or the grammar cannot be followed any further: {why}")]
    Constraint {
        /// Index of the token to choose, from 0.
        step: u64,
        /// The reason that the library gives.
        why: String,
    },
    /// No token of the vocabulary can continue the text as the constraint requires.
    #[error(
        "step {step}: no token of the model continues the text as the schema or the grammar requires; \
         loosen it, or use only characters that the tokenizer knows"
    )]
    NothingAllowed {
        /// Index of the token to choose, from 0.
        step: u64,
    },
    /// All logits are minus infinity, so no token can be chosen.
    #[error(
        "step {step}: all {count} logits are -inf, expected at least one token to choose; the weights or the compiled program are broken"
    )]
    NoCandidate {
        /// Index of the token to choose, from 0.
        step: u64,
        /// The number of logits per token.
        count: usize,
    },
}

/// Why a file is not the saved sequence that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SavedFault {
    /// It is another kind of file.
    #[error("is not a saved sequence, expected a file that Tracewright wrote")]
    Kind,
    /// It has another version of the format.
    #[error("has version {found} of the format, expected {expected}")]
    Version {
        /// The version in the file.
        found: u8,
        /// The version that is read.
        expected: u8,
    },
    /// Its bytes are not those that were written.
    #[error("is damaged, expected the bytes that were written")]
    Damaged,
    /// It belongs to other weights, or to the same in another format.
    #[error("belongs to the weights `{found}`, expected `{expected}`")]
    Model {
        /// The fingerprint in the file.
        found: String,
        /// The fingerprint of the network.
        expected: String,
    },
    /// The network keeps other state.
    #[error("has the state `{found}`, expected `{expected}`")]
    State {
        /// The first tensor in the file that differs.
        found: String,
        /// The tensor that the network has in its place.
        expected: String,
    },
    /// It has a text, and no conversation.
    #[error("is not a conversation, expected messages beside the tokens")]
    NoConversation,
    /// It has more tokens than the network takes.
    #[error("has {found} tokens, expected at most {expected}")]
    Length {
        /// The tokens in the file.
        found: usize,
        /// The context of the network.
        expected: usize,
    },
}

fn place(at: &Option<(usize, usize)>) -> String {
    at.map_or(String::new(), |(line, column)| format!(" at line {line}, column {column}"))
}

fn for_what(role: &Role) -> String {
    match role {
        Role::Tokens => "that takes an argument with the role `tokens`".into(),
        Role::Adapter => "that takes an argument with the role `adapter`".into(),
        role => format!("that takes a single token and gives a result with the role `{role}`"),
    }
}
