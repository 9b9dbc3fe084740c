//! What is recorded of a network: entry points of given sizes.

use trace::KvFormat;

/// What an entry point returns of its logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsMode {
    /// Those after the last real token, and the token they favour.
    Next,
    /// Those after each token.
    All,
    /// The token that they favour, after each token.
    Each,
    /// Those after each token, and the token that they favour there: what verifies a draft.
    Verify,
    /// None: the entry point fills memory, or gives embeddings.
    None,
}

/// What an entry point takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EntryInput {
    /// Token ids.
    #[default]
    Tokens,
    /// What stands in place of their embeddings.
    Features,
}

/// A function of the module that a runtime calls: fixed batch, chunk and context.
///
/// ```
/// use tracewright_dsl::EntryPoint;
///
/// // One sequence of at most 2048 tokens, 128 at once.
/// let names: Vec<String> = EntryPoint::all(1, 128, 2048).into_iter().map(|entry| entry.name).collect();
/// assert_eq!(names, ["prefill", "prefill_short", "decode", "score"]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryPoint {
    /// Its name.
    pub name: String,
    /// Sequences at once.
    pub batch: usize,
    /// Tokens of each sequence at once.
    pub chunk: usize,
    /// The longest sequence.
    pub context: usize,
    /// What it takes.
    pub input: EntryInput,
    /// What it returns of its logits.
    pub logits: LogitsMode,
    /// How keys and values are remembered.
    pub kv: KvFormat,
}

impl EntryPoint {
    /// One that takes tokens, and remembers keys and values as they are computed.
    pub fn new(name: &str, batch: usize, chunk: usize, context: usize, logits: LogitsMode) -> Self {
        let (input, kv) = (EntryInput::Tokens, KvFormat::default());
        Self { name: name.into(), batch, chunk, context, input, logits, kv }
    }

    /// The same for features in place of tokens.
    #[must_use]
    pub fn of_features(self) -> Self {
        Self { input: EntryInput::Features, ..self }
    }

    /// Tokens that `prefill_short` takes: so few cost little more than one, where weights are read once for all.
    const SHORT: usize = 16;

    /// `prefill` (chunks of `chunk` tokens), `prefill_short` (16 tokens, if a chunk is at least four times as long),
    /// `decode` (one token) and `score` (all positions of a chunk).
    pub fn all(batch: usize, chunk: usize, context: usize) -> Vec<Self> {
        let entry = |name: &str, chunk, logits| Self::new(name, batch, chunk, context, logits);
        let short = (chunk >= 4 * Self::SHORT).then(|| entry("prefill_short", Self::SHORT, LogitsMode::Next));
        let mut entries = vec![entry("prefill", chunk, LogitsMode::Next)];
        entries.extend(short);
        entries.extend([entry("decode", 1, LogitsMode::Next), entry("score", chunk, LogitsMode::All)]);
        entries
    }

    /// `verify`: the logits after each of `width` tokens, and the tokens that they favour.
    pub fn verify(batch: usize, width: usize, context: usize) -> Self {
        Self::new("verify", batch, width, context, LogitsMode::Verify)
    }

    /// Those of [`all`](Self::all) that choose tokens.
    pub fn steps(batch: usize, chunk: usize, context: usize) -> Vec<Self> {
        let mut entries = Self::all(batch, chunk, context);
        entries.retain(|entry| entry.logits == LogitsMode::Next);
        entries
    }
}
