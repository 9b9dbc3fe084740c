//! The jobs of the engine's thread, and its answers.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use std::time::Duration;

use generate::{Features, Generated, Prompt, SavedSequence, TokenLogprobs, TokenOptions};
use models::LoraMatrices;
use models::fit::OpenWarning;
use runtime::Transfers;

use super::ModelError;
use super::adapters::LoadedAdapter;
use super::source::BuildInfo;

pub(super) enum Job {
    Generate(Box<GenerateJob>),
    Score(Vec<u32>, Sender<Result<Vec<Vec<f32>>, ModelError>>),
    Save(Vec<u32>, Sender<Result<SavedSequence, ModelError>>),
    Load(Box<SavedSequence>, Sender<Result<(), ModelError>>),
    /// Puts each adapter in the place with its index, from 1.
    Adapt(Vec<(u32, LoraMatrices)>, Sender<Result<(), ModelError>>),
    Embed(EmbedJob, Sender<Result<Embedded, ModelError>>),
    /// The patches of a tile of an image. The answer has the tile's vectors, and their width.
    See(Vec<f32>, Sender<Result<(Vec<f32>, usize), ModelError>>),
    /// A text that speech has. The answer has the attention of each head.
    Align(AlignJob, Sender<Result<Vec<f32>, ModelError>>),
}

/// A text and its speech.
pub(super) struct AlignJob {
    /// Each a layer and a number.
    pub heads: Vec<[usize; 2]>,
    /// Without tokens, only the network is built.
    pub tokens: Vec<u32>,
    /// The spectrogram of a window.
    pub mel: Features,
}

/// Texts, or pairs of texts.
pub(super) struct EmbedJob {
    pub tokens: Vec<Vec<u32>>,
    /// For each pair the tokens of its first text; empty if no network reads them.
    pub first: Vec<usize>,
}

/// A sequence that the engine continues, and the listener that receives the pieces of its text.
pub(super) struct GenerateJob {
    pub prompt: Prompt,
    /// Keeps the adapter of the prompt in its place.
    pub adapter: Option<Arc<LoadedAdapter>>,
    pub options: TokenOptions,
    pub stop: Vec<String>,
    /// Another thread sets this flag to end the sequence.
    pub cancelled: Arc<AtomicBool>,
    /// The special tokens whose names appear in the generated text.
    pub shown: Vec<String>,
    pub listener: Listener,
}

/// A function that receives the events of a text, and returns whether the generation continues.
pub(super) type Listener = Box<dyn FnMut(TextEvent) -> bool + Send>;

/// An event of a text that the engine generates.
pub enum TextEvent {
    /// A new piece of text that no later token can change. A piece of text can be empty.
    Piece(String),
    /// The probabilities of tokens since the last event with some, if the options request them.
    Logprobs(Vec<TokenLogprobs>),
    /// The text has ended.
    Done(Box<Completion>),
    /// Generating the text has failed.
    Failed(ModelError),
}

/// A text that the model has generated completely.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The generated text. Without a tokenizer, the text consists of token ids separated by spaces.
    pub text: String,
    /// The tokens of the text, the reason why the text ended, and the timings of the generation.
    pub generated: Generated,
    /// Whether a stop string ended the text. The text of all tokens is then longer than `text`.
    pub is_cut: bool,
    /// The number of tokens in the prompt, including the tokens whose state was reused.
    pub prompt_tokens: usize,
    /// The time until the first token, beginning when the sequence joined the batch.
    pub first_token: Option<Duration>,
    /// The bytes copied between host and device meanwhile, also for other sequences.
    pub transfers: Transfers,
}

/// Contains the embeddings of texts, and the time that the computation took.
#[derive(Clone, Debug, Default)]
pub struct Embedded {
    /// One embedding per text, each a list of f32 numbers.
    pub embeddings: Vec<Vec<f32>>,
    /// The total time of the network calls that computed the embeddings.
    pub time: Duration,
    /// Information about building the embedding network, or `None` if an earlier call built it.
    pub build: Option<BuildInfo>,
}

/// Properties of an open model.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// The most tokens of prompt and answer, or of each text for an embedding model.
    pub context: usize,
    /// The number of token ids in the vocabulary.
    pub vocabulary: usize,
    /// The number of sequences that the model continues in parallel.
    pub slots: usize,
    /// Information about building and loading the model's network. For an embedding model the field is
    /// `None`, because Tracewright builds an embedding network only when the length of the texts is known.
    pub build: Option<BuildInfo>,
    /// Warnings about the model's files.
    pub warnings: Vec<OpenWarning>,
}
