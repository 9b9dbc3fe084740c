//! What can go wrong between text and tokens.

use std::path::PathBuf;

use errors::FileError;
use template::TemplateError;
use trace::Role;

/// An error of the tokenizer, the chat template, the sampler or the network.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A GGUF file could not be read.
    #[error(transparent)]
    Gguf(#[from] irpa::ArchiveError),
    /// A file is not JSON.
    #[error("`{path}` is not valid JSON", path = path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A key of a JSON file has a value of the wrong kind.
    #[error("key `{key}` of `{path}` is `{found}`, expected {expected}", path = path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// The value that stands there.
        found: String,
        /// What may stand there.
        expected: &'static str,
    },
    /// A tokenizer.json that the tokenizers library does not accept.
    #[error("`{path}` is not a tokenizer", path = path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// The library's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The tokenizer could not encode a text or decode tokens.
    #[error("the tokenizer cannot {what}")]
    Tokenize {
        /// What was asked of it.
        what: &'static str,
        /// The library's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A model without a chat template.
    #[error("`{dir}` has no chat template: expected `chat_template.jinja`, or `chat_template` in `tokenizer_config.json`; give a raw prompt instead", dir = dir.display())]
    NoTemplate {
        /// The model's folder.
        dir: PathBuf,
    },
    /// A chat template that cannot be read or rendered.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A sampling setting out of its range.
    #[error("`{name}` is {found}, expected {expected}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        found: String,
        /// Its range.
        expected: &'static str,
    },
    /// An option that is about text, for a model without a tokenizer.
    #[error(
        "`{option}` is about text, and the model has no `tokenizer.json`; use token ids, and leave the option out"
    )]
    NeedsText {
        /// The option.
        option: &'static str,
    },
    /// Logits that no token can be chosen from.
    #[error(
        "step {step}: logit of token {token} is {found}, expected a number below infinity; the weights or the compiled program are broken"
    )]
    Logit {
        /// Which token was to be chosen, from 0.
        step: u64,
        /// The token with the bad logit.
        token: usize,
        /// The bad logit.
        found: f32,
    },
    /// A program that chooses what is no token.
    #[error("the program chose the token {token}, expected one below {vocabulary}; it is broken")]
    Favoured {
        /// What it chose.
        token: u32,
        /// The number of ids.
        vocabulary: usize,
    },
    /// A text that joins a batch without a free row.
    #[error(
        "all {rows} sequences of the batch are in use; wait until a text ends, or build the program for more"
    )]
    Full {
        /// How many there are.
        rows: usize,
    },
    /// A prompt without tokens.
    #[error("the prompt has no tokens, expected at least one")]
    EmptyPrompt,
    /// More tokens than the context holds.
    #[error(
        "{length} tokens do not fit into the context of {context}; shorten the prompt, or build the program with a longer `context`"
    )]
    TooLong {
        /// How many there would be.
        length: usize,
        /// How many fit.
        context: usize,
    },
    /// A token id out of range.
    #[error("token {index} of the prompt has the id {token}, expected one below {vocabulary}")]
    Token {
        /// Which token, from 0.
        index: usize,
        /// Its id.
        token: u32,
        /// The number of ids.
        vocabulary: usize,
    },
    /// A program that is not a network this crate can call.
    #[error("entry point `{name}` {why}")]
    EntryPoint {
        /// The entry point.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// Memory that is read before an encoder filled it.
    #[error("the network reads memory that is not filled; call `Session::encode` first")]
    NoMemory,
    /// Features that are not those of whole positions, or more than an encoder takes.
    #[error("{found} numbers of features are given, expected {expected}")]
    Features {
        /// How many.
        found: usize,
        /// How many there may be.
        expected: String,
    },
    /// A program without an entry point that this crate could call.
    #[error("the program has no entry point {}", for_what(.role))]
    NoEntryPoint {
        /// What such an entry point takes, or gives for a single token.
        role: Role,
    },
    /// The evaluator refuses an entry point.
    #[error(transparent)]
    Evaluate(#[from] trace::EvaluateError),
    /// The program failed.
    #[error(transparent)]
    Runtime(#[from] runtime::RuntimeError),
    /// A tokenizer from which the bytes of its tokens do not follow.
    #[error(
        "the tokenizer does not define the bytes of its tokens, which a schema or a grammar needs: its \
         decoder has neither `ByteLevel` nor `ByteFallback`, or its vocabulary is no map"
    )]
    NoBytes {
        /// The library's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A schema that is not JSON.
    #[error("the schema is not valid JSON")]
    SchemaSyntax {
        /// Where and why.
        source: serde_json::Error,
    },
    /// A schema that no text can be held to.
    #[error("the schema cannot be followed: {why}")]
    Schema {
        /// The library's reason.
        why: String,
    },
    /// A grammar that is none.
    #[error("the grammar is not valid{}: {why}", place(.at))]
    Grammar {
        /// Line and column, from 1.
        at: Option<(usize, usize)>,
        /// The library's reason.
        why: String,
    },
    /// A schema or a grammar that is too much work.
    #[error("step {step}: the schema or the grammar cannot be followed any further: {why}")]
    Constraint {
        /// Which token was to be chosen, from 0.
        step: u64,
        /// The library's reason.
        why: String,
    },
    /// No token continues the text as it must.
    #[error(
        "step {step}: no token of the model continues the text as the schema or the grammar requires; \
         loosen it, or use only characters that the tokenizer knows"
    )]
    NothingAllowed {
        /// Which token was to be chosen, from 0.
        step: u64,
    },
    /// No logit is above minus infinity.
    #[error(
        "step {step}: all {count} logits are -inf, expected at least one token to choose; the weights or the compiled program are broken"
    )]
    NoCandidate {
        /// Which token was to be chosen, from 0.
        step: u64,
        /// The number of logits.
        count: usize,
    },
}

fn place(at: &Option<(usize, usize)>) -> String {
    at.map_or(String::new(), |(line, column)| format!(" at line {line}, column {column}"))
}

fn for_what(role: &Role) -> String {
    match role {
        Role::Tokens => "that takes an argument with the role `tokens`".into(),
        role => format!("that takes a single token and gives a result with the role `{role}`"),
    }
}
