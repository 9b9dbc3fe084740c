//! Limits for untrusted files. docs/reference/limits.md lists the same limits.

/// The largest size in bytes of a configuration, a manifest, or a list of special tokens.
pub const CONFIG: u64 = 16 << 20;

/// The largest memory in bytes for the values of a configuration.
pub const JSON_MEMORY: u64 = 32 << 20;

pub const INDEX: u64 = 64 << 20;

pub const TOKENIZER: u64 = 256 << 20;

pub const TEMPLATE: u64 = 1 << 20;

/// The limit of processor time for rendering a chat template, in seconds.
pub const TEMPLATE_SECONDS: u64 = 1;

/// The largest memory in bytes for a chat template, including the program that renders the template.
pub const TEMPLATE_MEMORY: u64 = 1 << 30;

/// The largest number of instructions that the template engine runs for a chat template. The limit on
/// instructions stops templates that would run forever. Real chat templates need a few thousand instructions.
pub const TEMPLATE_STEPS: usize = 1 << 21;

/// The largest number of operators in one tag of a chat template. The template engine recurses for
/// each operator in a tag. Real chat templates have about a dozen operators in a tag.
pub const TEMPLATE_OPERATORS: usize = 1000;

/// The largest number of bytes that a chat template writes in total, including text that the template
/// captures and writes again.
pub const TEMPLATE_WRITTEN: u64 = 256 << 20;

/// The largest number of items of lists and dictionaries in a chat template, including nested items.
pub const TEMPLATE_ITEMS: usize = 1 << 17;

/// The largest nesting depth of lists and dictionaries in a chat template. The limit on nesting
/// stops a list that contains itself.
pub const TEMPLATE_DEPTH: usize = 128;

/// The largest factor by which encoding or decoding with a tokenizer may lengthen a text.
pub const GROWTH: usize = 64;

/// The largest number of tokens that a tokenizer may add at the start and the end of a text.
pub const ADDED_TOKENS: usize = 1 << 10;

/// The largest number of sequences or texts that one call of a network processes.
pub const BATCH: usize = 1 << 16;

/// The largest size in bytes of a prompt from a file or a chat template. The size limit of a prompt
/// also applies to a message, to the tools and to the documents of a chat.
pub const PROMPT: u64 = 64 << 20;

/// The largest size in bytes of a schema or a grammar for answers.
pub const GRAMMAR: u64 = 4 << 20;

/// The largest time for compiling a schema or a grammar, in seconds.
pub const GRAMMAR_SECONDS: u64 = 10;

/// The largest time for computing the tokens that a schema or a grammar allows next, in seconds.
pub const GRAMMAR_STEP_SECONDS: u64 = 5;

/// The largest memory in bytes of a process that follows a schema or a grammar, including the program.
pub const GRAMMAR_MEMORY: u64 = 1 << 30;

/// The largest size in bytes of a file with the tuner's measurements of one matmul.
pub const TUNING_RECORD: u64 = 4 << 20;

pub const MODULE: u64 = 2 << 30;

pub const GGUF_KEYS: usize = 1 << 12;

pub const GGUF_TENSORS: usize = 1 << 16;

/// The largest number of tokens in a tokenizer, including unused ids.
pub const TOKENS: usize = 1 << 20;

/// The largest size in bytes of a token that is composed of other tokens.
pub const GGUF_TOKEN: usize = 1 << 10;

/// The largest size in bytes of a Rust file whose lines are shown in error messages.
pub const SOURCE: u64 = 16 << 20;

/// The largest size in bytes of a saved sequence, including its KV cache.
pub const SEQUENCE: u64 = 16 << 30;

pub const PROFILE: u64 = 64 << 20;

pub const LAYERS: usize = 4096;

/// The largest number of positions that a network may have.
pub const POSITIONS: usize = 1 << 30;

/// The largest value of most numbers in a configuration, such as a number of features or heads, or
/// a token id.
pub const EXTENT: usize = 1 << 24;

/// The largest number of features of an attention head. For each position, the tables of the rotary
/// embedding contain at most as many values as a head has features.
pub const HEAD: usize = 1 << 12;
