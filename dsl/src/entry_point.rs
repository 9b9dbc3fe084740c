//! [`EntryPoint`] describes the sizes, inputs and outputs of one compiled function of a network.

use trace::KvFormat;

use crate::experts_mode::ExpertsMode;

/// Selects the logits and tokens that an entry point returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsMode {
    /// Returns the logits after the last real token, and the most likely next token.
    Next,
    /// Returns the logits after every token.
    All,
    /// Returns the most likely next token after every token, without logits.
    Each,
    /// Logits and the most likely next token after every token, to verify draft tokens.
    Verify,
    /// Returns no logits, because the entry point runs an encoder or computes embeddings.
    None,
}

/// The main input of an entry point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EntryInput {
    /// The input is token ids, of type `i32[B, S]`.
    #[default]
    Tokens,
    /// The input is vectors `[B, S, D]`, which replace the embeddings of tokens.
    Features,
    /// Token ids `i32[B, S]`, and the hidden state `[B, S, D]` before each, for multi-token prediction.
    Draft,
}

/// A function of the compiled module that a runtime can call. Each entry point has a fixed batch
/// size, a fixed number of tokens per call, and a fixed context length.
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
    /// The name of the function in the compiled module.
    pub name: String,
    /// The number of sequences that one call processes.
    pub batch: usize,
    /// The number of tokens of each sequence that one call processes.
    pub chunk: usize,
    /// The largest number of tokens in a sequence.
    pub context: usize,
    /// The main input of the function: token ids or feature vectors.
    pub input: EntryInput,
    /// The logits that the entry point returns.
    pub logits: LogitsMode,
    /// Whether the entry point also returns the hidden states from which it computes logits.
    pub hidden: bool,
    /// The storage format of the KV cache.
    pub kv: KvFormat,
    /// The experts that the entry point computes for a token.
    pub experts: ExpertsMode,
}

impl EntryPoint {
    /// Creates an entry point that takes tokens. The KV cache has the element type of the network.
    pub fn new(name: &str, batch: usize, chunk: usize, context: usize, logits: LogitsMode) -> Self {
        let (input, kv) = (EntryInput::Tokens, KvFormat::default());
        Self {
            name: name.into(),
            batch,
            chunk,
            context,
            input,
            logits,
            hidden: false,
            kv,
            experts: ExpertsMode::default(),
        }
    }

    /// Changes the input of this entry point from tokens to features.
    #[must_use]
    pub fn of_features(self) -> Self {
        Self { input: EntryInput::Features, ..self }
    }

    /// For a module for multi-token prediction, which reads them.
    #[must_use]
    pub fn with_hidden(self) -> Self {
        Self { hidden: true, ..self }
    }

    /// Tokens per call. It takes little longer than one token, because reading the weights dominates.
    const SHORT: usize = 16;

    /// `prefill` takes `chunk` tokens, `prefill_short` 16 if `chunk` is at least 64, `decode` one. `score`
    /// takes `chunk`, and returns the logits of all positions.
    pub fn all(batch: usize, chunk: usize, context: usize) -> Vec<Self> {
        let entry = |name: &str, chunk, logits| Self::new(name, batch, chunk, context, logits);
        let short = (chunk >= 4 * Self::SHORT).then(|| entry("prefill_short", Self::SHORT, LogitsMode::Next));
        let mut entries = vec![entry("prefill", chunk, LogitsMode::Next)];
        entries.extend(short);
        entries.extend([entry("decode", 1, LogitsMode::Next), entry("score", chunk, LogitsMode::All)]);
        entries
    }

    /// Returns entry points that process only some consecutive sequences of this entry point's
    /// batch. An entry point for few sequences spends no time on idle sequences. For `decode`, the
    /// method returns entry points for 1, 2, 4, … and all sequences. For `prefill` and `score`, the
    /// method returns an entry point for one sequence. For `verify`, the method returns an entry
    /// point for one sequence and an entry point for all sequences.
    ///
    /// ```
    /// use tracewright_dsl::EntryPoint;
    ///
    /// let parts = EntryPoint::steps(6, 128, 2048).into_iter().flat_map(EntryPoint::in_parts);
    /// let names: Vec<String> = parts.map(|entry| entry.name).collect();
    /// assert_eq!(names, ["prefill_1", "prefill_short_1", "decode_1", "decode_2", "decode_4", "decode"]);
    /// ```
    pub fn in_parts(self) -> Vec<Self> {
        let of = |batch: usize| Self { name: format!("{}_{batch}", self.name), batch, ..self.clone() };
        match (self.logits, self.chunk) {
            _ if self.batch == 1 => vec![self],
            (LogitsMode::None, _) => vec![self],
            (LogitsMode::Next, 1) => {
                let fewer = (0..).map(|i| 1 << i).take_while(|&batch| batch < self.batch);
                fewer.map(of).chain([self.clone()]).collect()
            }
            (LogitsMode::Verify, _) => vec![of(1), self],
            (LogitsMode::Next | LogitsMode::All | LogitsMode::Each, _) => vec![of(1)],
        }
    }

    /// Logits and the most likely next token for each of `width` tokens.
    pub fn verify(batch: usize, width: usize, context: usize) -> Self {
        Self::new("verify", batch, width, context, LogitsMode::Verify)
    }

    /// Creates the entry points that propose draft tokens with the network's module for multi-token
    /// prediction. An entry point `draft_N` processes N tokens of one sequence. `chunk` is the number of
    /// tokens per prefill call, and `width` is the number of tokens that the entry point `verify` takes.
    ///
    /// ```
    /// use tracewright_dsl::EntryPoint;
    ///
    /// let names: Vec<String> = EntryPoint::drafts(128, 8, 2048).into_iter().map(|entry| entry.name).collect();
    /// assert_eq!(names, ["draft_128", "draft_8", "draft_1"]);
    /// ```
    pub fn drafts(chunk: usize, width: usize, context: usize) -> Vec<Self> {
        let mut chunks = vec![chunk, width, 1];
        chunks.sort_by_key(|&chunk| std::cmp::Reverse(chunk));
        chunks.dedup();
        let entry = |chunk: usize| Self {
            input: EntryInput::Draft,
            ..Self::new(&format!("draft_{chunk}"), 1, chunk, context, LogitsMode::Next).with_hidden()
        };
        chunks.into_iter().map(entry).collect()
    }

    /// Without `score`, which text generation does not call.
    pub fn steps(batch: usize, chunk: usize, context: usize) -> Vec<Self> {
        let mut entries = Self::all(batch, chunk, context);
        entries.retain(|entry| entry.logits == LogitsMode::Next);
        entries
    }
}

/// The experts that the entry point that is being recorded computes for a token ([`EntryPoint::experts`]).
pub fn experts_mode() -> ExpertsMode {
    let asked = crate::tracer::with(|t| {
        t.asked_experts_mode = true;
        t.experts_mode
    });
    asked.unwrap_or_default()
}
