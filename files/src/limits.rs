//! What a file that somebody else made may ask for at most. docs/reference/limits.md has the same table.

/// Bytes of a configuration, a manifest, a list of special tokens.
pub const CONFIG: u64 = 16 << 20;

/// Bytes of memory that the values of a configuration take.
pub const JSON_MEMORY: u64 = 32 << 20;

/// Bytes of a checkpoint's index.
pub const INDEX: u64 = 64 << 20;

/// Bytes of a tokenizer.
pub const TOKENIZER: u64 = 256 << 20;

/// Bytes of a chat template.
pub const TEMPLATE: u64 = 1 << 20;

/// Seconds of a processor that a chat template may take.
pub const TEMPLATE_SECONDS: u64 = 1;

/// Bytes of memory that a chat template may take, with the program that renders it.
pub const TEMPLATE_MEMORY: u64 = 1 << 30;

/// Steps after which a chat template is taken for endless; real ones need some thousand.
pub const TEMPLATE_STEPS: usize = 1 << 21;

/// Operators that one tag of a chat template may have: the engine goes as deep as there are, and real ones have some dozen.
pub const TEMPLATE_OPERATORS: usize = 1000;

/// Bytes that a chat template writes in all, those included that are caught under a name and written again.
pub const TEMPLATE_WRITTEN: u64 = 256 << 20;

/// Items of lists and dictionaries in a chat template, those within them included.
pub const TEMPLATE_ITEMS: usize = 1 << 17;

/// How deep lists and dictionaries in a chat template may be nested; one that contains itself has no end.
pub const TEMPLATE_DEPTH: usize = 128;

/// How many times longer a tokenizer may make a text, on the way to tokens and back.
pub const GROWTH: usize = 64;

/// Tokens that a tokenizer puts around a text.
pub const ADDED_TOKENS: usize = 1 << 10;

/// Sequences, or texts, at once.
pub const BATCH: usize = 1 << 16;

/// Bytes of a prompt, in a file, made by a template, or of a message, the tools or the documents of a chat.
pub const PROMPT: u64 = 64 << 20;

/// Bytes of a schema or a grammar that answers follow.
pub const GRAMMAR: u64 = 4 << 20;

/// Bytes of what was measured of one product.
pub const TUNING_RECORD: u64 = 4 << 20;

/// Bytes of a compiled module.
pub const MODULE: u64 = 2 << 30;

/// Keys of a GGUF file.
pub const GGUF_KEYS: usize = 1 << 12;

/// Tensors of a GGUF file.
pub const GGUF_TENSORS: usize = 1 << 16;

/// Tokens of a tokenizer, those included that it leaves out between others.
pub const TOKENS: usize = 1 << 20;

/// Bytes of such a token that is made of others.
pub const GGUF_TOKEN: usize = 1 << 10;

/// Bytes of a file of Rust whose lines are shown.
pub const SOURCE: u64 = 16 << 20;

/// Bytes of a saved sequence, with its state.
pub const SEQUENCE: u64 = 16 << 30;

/// Bytes of a profile.
pub const PROFILE: u64 = 64 << 20;

pub const LAYERS: usize = 4096;

/// Positions that a network knows.
pub const POSITIONS: usize = 1 << 30;

/// Any other number of a configuration that is counted: features, heads, token ids.
pub const EXTENT: usize = 1 << 24;

/// Features of a head, for which tables over all positions are made.
pub const HEAD: usize = 1 << 12;
