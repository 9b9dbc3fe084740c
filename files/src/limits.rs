//! Limits for untrusted files. docs/reference/limits.md has the same table.

/// Bytes of a configuration, a manifest, or a list of special tokens.
pub const CONFIG: u64 = 16 << 20;

/// Bytes of memory for the values of a configuration.
pub const JSON_MEMORY: u64 = 32 << 20;

pub const INDEX: u64 = 64 << 20;

pub const TOKENIZER: u64 = 256 << 20;

pub const TEMPLATE: u64 = 1 << 20;

/// Seconds of processor time for rendering a chat template.
pub const TEMPLATE_SECONDS: u64 = 1;

/// Bytes of memory for a chat template, including the program that renders it.
pub const TEMPLATE_MEMORY: u64 = 1 << 30;

/// Steps after which a chat template is considered endless. Real templates need some thousand.
pub const TEMPLATE_STEPS: usize = 1 << 21;

/// Operators in one tag of a chat template. The engine recurses for each. Real templates have about a dozen.
pub const TEMPLATE_OPERATORS: usize = 1000;

/// Bytes that a chat template writes in total, including text that it captures and writes again.
pub const TEMPLATE_WRITTEN: u64 = 256 << 20;

/// Items of lists and dictionaries in a chat template, including nested ones.
pub const TEMPLATE_ITEMS: usize = 1 << 17;

/// The nesting depth of lists and dictionaries in a chat template. A list that contains itself would be
/// endless.
pub const TEMPLATE_DEPTH: usize = 128;

/// The factor by which a tokenizer may lengthen a text, in either direction.
pub const GROWTH: usize = 64;

/// Tokens that a tokenizer adds around a text.
pub const ADDED_TOKENS: usize = 1 << 10;

/// Sequences or texts per call.
pub const BATCH: usize = 1 << 16;

/// Bytes of a prompt, from a file or a template; or of a message, the tools or the documents of a chat.
pub const PROMPT: u64 = 64 << 20;

/// Bytes of a schema or a grammar for answers.
pub const GRAMMAR: u64 = 4 << 20;

/// Bytes of the measurements of one matmul.
pub const TUNING_RECORD: u64 = 4 << 20;

pub const MODULE: u64 = 2 << 30;

pub const GGUF_KEYS: usize = 1 << 12;

pub const GGUF_TENSORS: usize = 1 << 16;

/// Tokens of a tokenizer, including unused ids.
pub const TOKENS: usize = 1 << 20;

/// Bytes of a token that is composed of others.
pub const GGUF_TOKEN: usize = 1 << 10;

/// Bytes of a Rust file whose lines are shown.
pub const SOURCE: u64 = 16 << 20;

/// Bytes of a saved sequence, with its state.
pub const SEQUENCE: u64 = 16 << 30;

pub const PROFILE: u64 = 64 << 20;

pub const LAYERS: usize = 4096;

/// The largest position of a network.
pub const POSITIONS: usize = 1 << 30;

/// Other counts in a configuration, such as features, heads and token ids.
pub const EXTENT: usize = 1 << 24;

/// Features of a head. Tables over all positions depend on it.
pub const HEAD: usize = 1 << 12;
