//! Language models that predict the next token: what is said once for all of them.

use std::panic::Location;

use trace::{KvFormat, KvState, Part, RingState, Role, Sizes, StateAxis, StateKind};

use crate::element::{Element, Float, I32};
use crate::nn::{Slots, argmax};
use crate::record::{DeclaredShards, EntryRecorder, Recording, Traced};
use crate::tracer::Raw;
use crate::{Axis, BuildError, Cache, Dim, Kv, Position, Recurrent, Tensor, TraceArg, TraceError};

/// What one layer remembers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerState {
    /// Keys and values.
    Kv {
        /// The axis of key-value heads.
        heads: Dim,
        /// The axis of a head's features.
        features: Dim,
        /// How many positions a query sees, its own included, if not all: then a ring of slots is enough.
        window: Option<usize>,
    },
    /// What a recurrence carries, without the batch.
    Recurrent(Vec<Dim>),
}

impl LayerState {
    /// Its kind in a program of these sizes, and the axes that the layer declares.
    fn kind(&self, format: KvFormat, sizes: Sizes) -> (StateKind, Vec<Dim>) {
        match self {
            Self::Kv { heads, features, window } => {
                let ring = window.and_then(|window| RingState::of(window, format, sizes));
                (ring.map_or(StateKind::Kv(KvState { format }), StateKind::Ring), vec![*heads, *features])
            }
            Self::Recurrent(dims) => (StateKind::Recurrent(trace::RecurrentState), dims.clone()),
        }
    }
}

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
    returned(entry, &cache, &kept);
}

/// The tokens, and at which positions they are.
fn steps(entry: &mut EntryRecorder, point: &EntryPoint) -> (Tensor<I32>, Position) {
    let tokens = entry.input("tokens", Role::Tokens, &[BATCH.of(point.batch), TOKENS.of(point.chunk)]);
    let rows = if point.batch == 1 { vec![] } else { vec![BATCH.of(point.batch)] };
    let start = entry.input("start", Role::Start { context: point.context }, &rows);
    let count = entry.input("count", Role::Count, &rows);
    (tokens, Position { start, count })
}

/// One tensor for each part of each layer's state; after the call, its new value is under the same name and role.
fn taken<T: Float>(
    entry: &mut EntryRecorder,
    state: Vec<(usize, LayerState)>,
    point: &EntryPoint,
    sizes: Sizes,
) -> (Cache<T>, Vec<(usize, StateKind)>) {
    let mut cache = Cache { layers: Vec::new(), recurrent: Vec::new(), context: point.context };
    let mut kept = Vec::new();
    for (layer, state) in state {
        let (kind, own) = state.kind(point.kv, sizes);
        let own = own.iter().map(|d| (d.axis.0.into(), d.extent)).collect();
        let mut parts = Parts { entry, layer, kind, own, sizes };
        match kind {
            StateKind::Kv(KvState { format }) | StateKind::Ring(RingState { format, .. }) => {
                cache.layers.push(Kv { k: parts.slots(format, 0), v: parts.slots(format, 1) });
            }
            StateKind::Recurrent(_) => cache.recurrent.push(Recurrent { state: parts.input(0) }),
        }
        kept.push((layer, kind));
    }
    (cache, kept)
}

/// What the layers remember now.
fn returned<T: Float>(entry: &mut EntryRecorder, cache: &Cache<T>, kept: &[(usize, StateKind)]) {
    let (mut layers, mut recurrent) = (cache.layers.iter(), cache.recurrent.iter());
    for &(layer, kind) in kept {
        let parts: Vec<Raw> = match kind {
            StateKind::Kv(_) | StateKind::Ring(_) => layers.next().map_or(vec![], |kv| flat(&(kv.k, kv.v))),
            StateKind::Recurrent(_) => recurrent.next().map_or(vec![], flat),
        };
        for (index, part) in parts.into_iter().enumerate() {
            entry.output_raw(name(kind, index, layer), role(kind, index, layer), part);
        }
    }
}

/// The tensors of what a layer remembers, in the order of its parts.
fn flat(state: &impl TraceArg) -> Vec<Raw> {
    let mut tensors = Vec::new();
    state.flatten(&mut tensors, &mut Vec::new());
    tensors
}

/// What a layer remembers, while an entry point takes it.
struct Parts<'a> {
    entry: &'a mut EntryRecorder,
    layer: usize,
    kind: StateKind,
    own: Vec<StateAxis>,
    sizes: Sizes,
}

impl Parts<'_> {
    fn input<T: Element>(&mut self, index: usize) -> Tensor<T> {
        let axes = self.kind.axes(index, &self.own, self.sizes);
        let dims: Vec<Dim> = axes.iter().map(|(axis, extent)| Axis::named(axis).of(*extent)).collect();
        let (name, role) = (name(self.kind, index, self.layer), role(self.kind, index, self.layer));
        self.entry.input(name, role, &dims)
    }

    /// The keys, or the values after them.
    fn slots<T: Float>(&mut self, format: KvFormat, which: usize) -> Slots<T> {
        match format {
            KvFormat::Computed => Slots::Computed(self.input(which)),
            KvFormat::Q8 => Slots::Q8 { integers: self.input(2 * which), scales: self.input(2 * which + 1) },
        }
    }
}

/// `keys3`
fn name(kind: StateKind, index: usize, layer: usize) -> String {
    format!("{}{layer}", kind.parts()[index])
}

fn role(kind: StateKind, index: usize, layer: usize) -> Role {
    Role::State { layer, part: Part { kind, index } }
}
