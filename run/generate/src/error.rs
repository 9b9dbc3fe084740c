//! [`GenerateError`] lists the errors of the tokenizer, the chat template, the sampler and the network.

use std::path::PathBuf;
use std::sync::Arc;

use errors::FileError;
use template::TemplateError;
use trace::Role;

use crate::ConstraintLimit;

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
        /// The path of the JSON file that is not valid.
        path: PathBuf,
        /// The reason why the file is not valid JSON, and the position of the error in the file.
        source: serde_json::Error,
    },
    /// A key of a JSON file has a value of the wrong type.
    #[error("key `{key}` of `{path}` is `{found}`, expected {expected}", path = path.display())]
    Key {
        /// The path of the JSON file that contains the key.
        path: PathBuf,
        /// The name of the key whose value has the wrong type.
        key: &'static str,
        /// The value of the key in the file, shortened for the error message.
        found: String,
        /// A description of the values that the key may have.
        expected: &'static str,
    },
    /// The tokenizers library rejects a `tokenizer.json`.
    #[error("`{path}` is not a valid tokenizer file", path = path.display())]
    Tokenizer {
        /// The path of the tokenizer file.
        path: PathBuf,
        /// The error of the library `tokenizers`.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The tokenizer cannot encode a text or decode tokens.
    #[error("the tokenizer cannot {what}")]
    Tokenize {
        /// The operation that failed: encoding or decoding.
        what: &'static str,
        /// The error of the library `tokenizers`.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The model has no chat template.
    #[error("`{dir}` has no chat template: expected `chat_template.jinja`, or `chat_template` in `tokenizer_config.json`; give a raw prompt instead", dir = dir.display())]
    NoTemplate {
        /// The path of the model's folder, which contains no chat template.
        dir: PathBuf,
    },
    /// A chat template cannot be read or rendered.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A sampling setting is out of its range.
    #[error("`{name}` is {found}, expected {expected}")]
    Setting {
        /// The name of the sampling setting, as in `Sampling`.
        name: &'static str,
        /// The value that you set for the sampling setting.
        found: String,
        /// A description of the values that the sampling setting may have.
        expected: &'static str,
    },
    /// An option needs a tokenizer, but the model has no tokenizer.
    #[error(
        "`{option}` needs a tokenizer, and the model has no `tokenizer.json`; use token ids, and leave the \
        option out"
    )]
    NeedsText {
        /// The name of the option that needs a tokenizer, as in `GenerateOptions`.
        option: &'static str,
    },
    /// A logit is NaN or infinite, so no token can be chosen.
    #[error(
        "step {step}: the logit of token {token} is {found}, expected a number below infinity; the weights \
        or the compiled program are broken"
    )]
    Logit {
        /// The number of tokens that the model had generated before the error.
        step: u64,
        /// The token id whose logit is NaN or infinite.
        token: usize,
        /// The value of the logit that is NaN or infinite.
        found: f32,
    },
    /// The compiled program chose a token id that is not in the vocabulary.
    #[error(
        "the program chose the token {token}, expected a token below {vocabulary}; the program is broken"
    )]
    Favoured {
        /// The token id that the program chose.
        token: u32,
        /// The number of token ids in the vocabulary.
        vocabulary: usize,
    },
    /// A sequence cannot join a batch, because the batch is full.
    #[error(
        "all {sequences} sequences of the batch are in use; wait until one of the sequences ends, or build \
        the program with a larger batch size"
    )]
    Full {
        /// The number of sequences of the batch.
        sequences: usize,
    },
    /// A prompt has no tokens.
    #[error("the prompt has no tokens, expected at least one")]
    EmptyPrompt,
    /// A text has more tokens than fit into the context.
    #[error(
        "the text has {length} tokens, but the context has only {context} tokens; shorten the prompt, or build the \
        program with a longer `context`"
    )]
    TooLong {
        /// The number of tokens of the text that is too long.
        length: usize,
        /// The number of tokens that fit into the context.
        context: usize,
    },
    /// A token id is not in the vocabulary.
    #[error("token {index} of the prompt has the id {token}, expected an id below {vocabulary}")]
    Token {
        /// The index of the token in its text, counted from 0.
        index: usize,
        /// The token id, which is out of range.
        token: u32,
        /// The number of token ids in the vocabulary.
        vocabulary: usize,
    },
    /// An entry point lacks an argument or a result, or the type of an argument or a result is wrong.
    #[error("entry point `{name}` {why}")]
    EntryPoint {
        /// The name of the entry point whose arguments or results are wrong.
        name: String,
        /// The end of the error message, which describes the wrong argument or result of the entry point.
        why: String,
    },
    /// The decoder needs the encoder's output, but there is no input for the encoder.
    #[error(
        "the network reads the output of its encoder, but no call has run the encoder; set `source` in the \
        prompt, or call `Session::encode` first"
    )]
    NoMemory,
    /// There is an input for the encoder, but the network has no encoder.
    #[error("the prompt has a source, but the network has no encoder; leave `source` out")]
    NoEncoder,
    /// The input for the encoder has the wrong kind.
    #[error("the encoder takes {takes}, but the source of the prompt is {found}; pass {takes}", found = other(.takes))]
    SourceKind {
        /// The kind that the encoder takes, `tokens` or `features`.
        takes: &'static str,
    },
    /// Features have the wrong shape.
    #[error(
        "{found} feature values with a width of {width} are no features for the network, expected 1 to {most} \
        vectors with a width of {expected}"
    )]
    Features {
        /// The number of values that the caller passed.
        found: usize,
        /// The width that the caller passed.
        width: usize,
        /// The width that the network takes.
        expected: usize,
        /// The largest number of vectors.
        most: usize,
    },
    /// The index of an adapter is out of range.
    #[error("the adapter is {adapter}, expected 0 to {count}; index 0 selects no adapter")]
    Adapter {
        /// The index of the adapter.
        adapter: u32,
        /// The number of adapters that the network has.
        count: usize,
    },
    /// The program lacks an entry point that the request needs.
    #[error("the program has no entry point {}", for_what(.role))]
    NoEntryPoint {
        /// The role that an argument or a result of the missing entry point must have.
        role: Role,
    },
    /// The evaluator cannot run an entry point.
    #[error(transparent)]
    Evaluate(#[from] trace::EvaluateError),
    /// An entry point that a program compiles after its start cannot be compiled.
    #[error(transparent)]
    Compile(#[from] runtime::CompileError),
    /// IREE failed during a call.
    #[error(transparent)]
    Runtime(#[from] runtime::RuntimeError),
    /// XLA or the PJRT plugin that contains XLA failed.
    #[error(transparent)]
    Pjrt(#[from] pjrt::PjrtError),
    /// The program belongs to XLA, but the caller asked for a network of IREE.
    #[error("the program runs on XLA, expected a program for IREE; call `Program::into_network` instead")]
    OtherEngine,
    /// The bytes of the tokenizer's tokens cannot be determined.
    #[error(
        "the tokenizer does not define the bytes of its tokens: its decoder has neither `ByteLevel` nor \
        `ByteFallback`; leave out the schema or grammar"
    )]
    NoBytes {
        /// The reason why the bytes cannot be determined.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file does not contain the saved sequence that the caller needs.
    #[error("`{path}`: {fault}; remove the file, or name another file", path = path.display())]
    Saved {
        /// The path of the file, which should contain a saved sequence.
        path: PathBuf,
        /// The reason why the file is not usable.
        fault: SavedFault,
    },
    /// A JSON schema is not valid JSON.
    #[error("the schema is not valid JSON")]
    SchemaSyntax {
        /// The reason why the schema is not valid JSON, and the position of the error in the schema.
        source: crate::SchemaSyntaxError,
    },
    /// A JSON schema is invalid, or uses an unsupported feature.
    #[error("Tracewright cannot follow the schema: {why}")]
    Schema {
        /// The error message of the library llguidance.
        why: String,
    },
    /// A keyword of a JSON schema is invalid, or cannot be enforced during generation.
    #[error("Tracewright cannot follow the schema: {0}")]
    SchemaKeyword(crate::SchemaError),
    /// A grammar is not valid.
    #[error("the grammar is not valid{}: {why}", place(.at))]
    Grammar {
        /// The line and the column of the error, counted from 1.
        at: Option<(usize, usize)>,
        /// The error message of the library llguidance.
        why: String,
    },
    /// The library llguidance exceeded a limit while following a schema or a grammar.
    #[error("step {step}: the text cannot continue as the schema or the grammar requires: {why}")]
    Constraint {
        /// The number of tokens that the model had generated before the error.
        step: u64,
        /// The error message of the library llguidance.
        why: String,
    },
    /// A schema or a grammar exceeded a limit of the process that follows it.
    #[error("{}{limit}; make the schema or the grammar simpler", at_step(.step))]
    ConstraintLimit {
        /// The number of tokens before the error, or `None` if the schema was not compiled.
        step: Option<u64>,
        /// The limit.
        limit: ConstraintLimit,
    },
    /// The program that follows schemas and grammars does not run.
    #[error("the program that follows schemas and grammars does not run")]
    ConstraintProgram {
        /// The reason why the program does not run.
        source: Arc<std::io::Error>,
    },
    /// No token of the vocabulary can continue the text as the constraint requires.
    #[error(
        "step {step}: the schema or the grammar allows no token of the model as the next token; loosen the \
        grammar, or use only characters that the tokenizer knows"
    )]
    NothingAllowed {
        /// The number of tokens that the model had generated before the error.
        step: u64,
    },
    /// The rules of `generation_config.json` forbid all tokens.
    #[error(
        "step {step}: the rules for tokens forbid every token; take keys such as `suppress_tokens` out of \
        `generation_config.json`"
    )]
    NothingLeft {
        /// The number of tokens that the model had generated before the error.
        step: u64,
    },
    /// All logits are minus infinity, so no token can be chosen.
    #[error(
        "step {step}: all {count} logits are -inf, expected at least one finite logit; the weights or the compiled program are broken"
    )]
    NoCandidate {
        /// The number of tokens that the model had generated before the error.
        step: u64,
        /// The number of logits that the network computed for one token.
        count: usize,
    },
}

/// The reason why a file does not contain the saved sequence that the caller needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SavedFault {
    /// The file is not a saved sequence.
    #[error("the file is not a saved sequence, expected a file that Tracewright wrote")]
    Kind,
    /// The file contains a saved sequence in a version of the file format that this program does not support.
    #[error("the file has version {found} of the format for saved sequences, expected version {expected}")]
    Version {
        /// The version of the file format that the file has.
        found: u8,
        /// The version of the file format that this program reads.
        expected: u8,
    },
    /// The file is damaged, because the hash in the file does not match the file's bytes.
    #[error("the file is damaged: its bytes differ from the bytes that Tracewright wrote")]
    Damaged,
    /// The saved sequence was computed with different weights, or with weights in another format.
    #[error("the sequence was saved with the weights `{found}`, expected the weights `{expected}`")]
    Model {
        /// The fingerprint of the weights with which the saved sequence was computed.
        found: String,
        /// The fingerprint of the weights that the network uses now.
        expected: String,
    },
    /// The state tensors of the network differ from the state tensors in the file.
    #[error("the sequence was saved with the state tensor `{found}`, expected the state tensor `{expected}`")]
    State {
        /// The first state tensor in the file that differs from the network's state tensors.
        found: String,
        /// The state tensor that the network has instead of the state tensor in the file.
        expected: String,
    },
    /// The file contains tokens, but does not contain the messages of a conversation.
    #[error("the file is not a saved conversation, expected messages in addition to the tokens")]
    NoConversation,
    /// The sequence has more tokens than the network can take.
    #[error("the saved sequence has {found} tokens, expected at most {expected}")]
    Length {
        /// The number of tokens of the saved sequence in the file.
        found: usize,
        /// The largest number of tokens that the network can process.
        expected: usize,
    },
}

fn at_step(step: &Option<u64>) -> String {
    step.map_or(String::new(), |step| format!("step {step}: "))
}

fn place(at: &Option<(usize, usize)>) -> String {
    at.map_or(String::new(), |(line, column)| format!(" at line {line}, column {column}"))
}

fn other(takes: &str) -> &'static str {
    if takes == "tokens" { "features" } else { "tokens" }
}

fn for_what(role: &Role) -> String {
    match role {
        Role::Tokens => "that takes an argument with the role `tokens`".into(),
        Role::Features => "that takes an argument with the role `features`".into(),
        Role::Adapter { .. } => "that takes an argument with the role `adapter`".into(),
        role => format!("that takes a single token and gives a result with the role `{role}`"),
    }
}
