//! Language models that predict the next token: what is said once for all of them.

use std::panic::Location;

use trace::{KvFormat, Role, Sizes};

use crate::element::{Float, I32};
use crate::nn::{StateArguments, argmax};
use crate::record::{DeclaredShards, EntryRecorder, Recording, Traced};
use crate::{Axis, BuildError, Cache, LayerState, Position, Tensor, TraceArg, TraceError};

/// What layers remember, in the order of the layers.
#[doc(hidden)]
pub fn by_layer(mut state: Vec<(usize, LayerState)>) -> Vec<(usize, LayerState)> {
    state.sort_by_key(|(layer, _)| *layer);
    state
}

/// A network that predicts the next token. [`model!`](crate::model) implements it for a root block that declares a
/// `cache` and the functions `forward` and `logits`.
pub trait CausalLm: Sized {
    /// The default element type.
    type Element: Float;
    /// The configuration.
    type Config;
    /// What is divided among devices.
    const SHARDS: DeclaredShards = &[];

    /// The network of a configuration.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    fn new(config: &Self::Config) -> Result<Self, BuildError>;

    /// What layers remember, and which ones.
    fn state(&self) -> Vec<(usize, LayerState)>;

    /// Features `[B, S, D]` of each of `tokens` `[B, S]`.
    fn forward(
        &self,
        tokens: Tensor<I32>,
        at: Position,
        cache: &mut Cache<Self::Element>,
    ) -> Tensor<Self::Element>;

    /// Logits over the vocabulary `[…, V]` of features `[…, D]`.
    fn logits(&self, features: Tensor<Self::Element>) -> Tensor<crate::F32>;

    /// The trace of these entry points. No weight is read.
    ///
    /// Each takes, by role, `tokens: i32[B,S]`, `start` and `count` (`i32[]`, of several rows `i32[B]`), then what
    /// each layer remembers; and returns `logits`, for [`Wanted::Next`] also `token`, then what the layers remember
    /// now.
    ///
    /// # Errors
    /// What is wrong with the configuration, or the first error of a forward body with its Rust line.
    fn trace(config: &Self::Config, entry_points: &[EntryPoint]) -> Result<Traced, TraceError> {
        let place = Location::caller();
        let chunk = entry_points.iter().map(|entry| entry.chunk).max().unwrap_or(1);
        let mut recording = Recording::new(Self::new(config)?).sharded(Self::SHARDS);
        for point in entry_points {
            recording = recording.entry_with(&point.name, |model, entry| {
                let sizes = Sizes { batch: point.batch, chunk, context: point.context };
                record(model, entry, point, sizes, place);
            })?;
        }
        Ok(recording.finish())
    }
}

/// Which logits an entry point returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Those after the last real token, and the token they favour.
    Next,
    /// Those after each token.
    All,
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
    /// Which logits.
    pub wanted: Wanted,
    /// How keys and values are remembered.
    pub kv: KvFormat,
}

impl EntryPoint {
    /// Tokens that `prefill_short` takes: so few cost little more than one, where weights are read once for all.
    const SHORT: usize = 16;

    /// `prefill` (chunks of `chunk` tokens), `prefill_short` (16 tokens, if a chunk is at least four times as long),
    /// `decode` (one token) and `score` (all positions of a chunk).
    pub fn all(batch: usize, chunk: usize, context: usize) -> Vec<Self> {
        let kv = KvFormat::default();
        let entry = |name: &str, chunk, wanted| Self { name: name.into(), batch, chunk, context, wanted, kv };
        let short = (chunk >= 4 * Self::SHORT).then(|| entry("prefill_short", Self::SHORT, Wanted::Next));
        let mut entries = vec![entry("prefill", chunk, Wanted::Next)];
        entries.extend(short);
        entries.extend([entry("decode", 1, Wanted::Next), entry("score", chunk, Wanted::All)]);
        entries
    }

    /// Those of [`all`](Self::all) that choose tokens.
    pub fn steps(batch: usize, chunk: usize, context: usize) -> Vec<Self> {
        let mut entries = Self::all(batch, chunk, context);
        entries.retain(|entry| entry.wanted == Wanted::Next);
        entries
    }
}

const BATCH: Axis = Axis("B");
const TOKENS: Axis = Axis("S");

/// Records one entry point of a module of these sizes.
fn record<M: CausalLm>(
    model: &M,
    entry: &mut EntryRecorder,
    point: &EntryPoint,
    sizes: Sizes,
    place: &'static Location<'static>,
) {
    let (tokens, at) = steps(entry, point);
    let (mut cache, kept) = taken(entry, model.state(), point, sizes);
    let features = model.forward(tokens, at, &mut cache);
    match point.wanted {
        Wanted::Next => {
            let logits = model.logits(features.at(TOKENS, at.count - 1));
            let vocabulary = logits.dims(place).last().map_or(Axis("V"), |d| d.axis);
            entry.output("logits", Role::Logits, logits);
            entry.output("token", Role::Token, argmax(logits, vocabulary));
        }
        Wanted::All => entry.output("logits", Role::Logits, model.logits(features)),
    }
    returned(entry, &cache, kept);
}

/// The tokens, and at which positions they are.
fn steps(entry: &mut EntryRecorder, point: &EntryPoint) -> (Tensor<I32>, Position) {
    let tokens = entry.input("tokens", Role::Tokens, &[BATCH.of(point.batch), TOKENS.of(point.chunk)]);
    let rows = if point.batch == 1 { vec![] } else { vec![BATCH.of(point.batch)] };
    let start = entry.input("start", Role::Start { context: point.context }, &rows);
    let count = entry.input("count", Role::Count, &rows);
    (tokens, Position { start, count })
}

/// One argument for each tensor of each layer's state; after the call, its new value is under the same name and role.
fn taken<T: Float>(
    entry: &mut EntryRecorder,
    state: Vec<(usize, LayerState)>,
    point: &EntryPoint,
    sizes: Sizes,
) -> (Cache<T>, Vec<(String, Role)>) {
    let (mut cache, mut kept) = (Cache::new(point.context), Vec::new());
    for (layer, declared) in state {
        let arguments = StateArguments { entry, layer, format: point.kv, sizes, kept: &mut kept };
        cache.take(&declared, arguments);
    }
    (cache, kept)
}

/// What the layers remember now.
fn returned<T: Float>(entry: &mut EntryRecorder, cache: &Cache<T>, kept: Vec<(String, Role)>) {
    let mut tensors = Vec::new();
    cache.flatten(&mut tensors, &mut Vec::new());
    for ((name, role), tensor) in kept.into_iter().zip(tensors) {
        entry.output_raw(name, role, tensor);
    }
}
