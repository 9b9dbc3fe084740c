//! Limits for untrusted files. docs/reference/limits.md lists the same limits.

/// The largest size in bytes of a configuration, a manifest, or a list of special tokens.
pub const CONFIG: u64 = 16 << 20;

pub const JSON_MEMORY: u64 = 32 << 20;

pub const INDEX: u64 = 64 << 20;

pub const TOKENIZER: u64 = 256 << 20;

pub const TEMPLATE: u64 = 1 << 20;

pub const TEMPLATE_SECONDS: u64 = 1;

/// The largest memory in bytes for a chat template, including the program that renders the template.
pub const TEMPLATE_MEMORY: u64 = 1 << 30;

/// Stops templates that would run forever. Real ones need a few thousand instructions.
pub const TEMPLATE_STEPS: usize = 1 << 21;

/// Per tag, because the engine recurses for each operator. Real templates have about a dozen.
pub const TEMPLATE_OPERATORS: usize = 1000;

/// In bytes, including text that is captured and written again.
pub const TEMPLATE_WRITTEN: u64 = 256 << 20;

/// The largest number of items of lists and dictionaries in a chat template, including nested items.
pub const TEMPLATE_ITEMS: usize = 1 << 17;

/// Stops a list that contains itself.
pub const TEMPLATE_DEPTH: usize = 128;

/// The largest factor by which encoding or decoding with a tokenizer may lengthen a text.
pub const GROWTH: usize = 64;

/// The largest number of tokens that a tokenizer may add at the start and the end of a text.
pub const ADDED_TOKENS: usize = 1 << 10;

/// The largest number of sequences or texts that one call of a network processes.
pub const BATCH: usize = 1 << 16;

/// In bytes, for a file, a chat template's result, a message, the tools or the documents of a chat.
pub const PROMPT: u64 = 64 << 20;

/// The largest size in bytes of a schema or a grammar for answers.
pub const GRAMMAR: u64 = 4 << 20;

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

pub const GGUF_TOKEN: usize = 1 << 10;

/// The largest size in bytes of a Rust file whose lines are shown in error messages.
pub const SOURCE: u64 = 16 << 20;

/// The largest size in bytes of a saved sequence, including its KV cache.
pub const SEQUENCE: u64 = 16 << 30;

pub const PROFILE: u64 = 64 << 20;

/// The largest size in bytes of an audio file.
pub const AUDIO: u64 = 1 << 30;

/// The longest audio in a file, which can be much larger than the file.
pub const AUDIO_SECONDS: u64 = 14400;

pub const LAYERS: usize = 4096;

pub const POSITIONS: usize = 1 << 30;

/// For most numbers in a configuration: features, heads, token ids.
pub const EXTENT: usize = 1 << 24;

/// Features of an attention head, which bound the rotary tables per position.
pub const HEAD: usize = 1 << 12;
