//! Defines the trait [`CausalLm`] of models that predict the next token, and their entry points.

use std::panic::Location;

use trace::{Role, Sizes};

use crate::element::{F32, Float, I32};
use crate::nn::{StateArguments, StateTensor, argmax};
use crate::record::{DeclaredShards, EntryRecorder, Recording, Traced};
use crate::tracer::{self, Raw};
use crate::{
    Axis, BuildError, Cache, Dim, EntryInput, EntryPoint, LayerState, LogitsMode, Position, Tensor, TraceArg,
    TraceError, TraceErrorKind,
};

/// Sorts the states by the index of the layer.
#[doc(hidden)]
pub fn by_layer(mut state: Vec<(usize, LayerState)>) -> Vec<(usize, LayerState)> {
    state.sort_by_key(|(layer, _)| *layer);
    state
}

/// Predicts the next token. [`model!`](crate::model) implements it for a root block with `cache`, `forward`
/// and `logits`.
pub trait CausalLm: Sized {
    /// The default element type of weights and activations.
    type Element: Float;
    /// The type of the network's configuration.
    type Config;
    /// The axes that `shard` partitions over a device mesh. By default, Tracewright partitions no axes.
    const SHARDS: DeclaredShards = &[];

    /// Builds the network for a configuration.
    ///
    /// # Errors
    /// Returns an error if a value in the configuration is invalid.
    fn new(config: &Self::Config) -> Result<Self, BuildError>;

    /// The states that the layers declare, each with the index of the layer.
    fn state(&self) -> Vec<(usize, LayerState)>;

    /// Computes the features `[B, S, D]` for the token ids `tokens` `[B, S]`.
    fn forward(
        &self,
        tokens: Tensor<I32>,
        at: Position,
        cache: &mut Cache<Self::Element>,
    ) -> Tensor<Self::Element>;

    /// From vectors `[B, S, D]` in place of token ids, if the root block declares it.
    #[track_caller]
    fn forward_features(
        &self,
        _features: Tensor<Self::Element>,
        _at: Position,
        _cache: &mut Cache<Self::Element>,
    ) -> Tensor<Self::Element> {
        no_function("forward_features");
        Tensor::new(Raw::POISON)
    }

    /// The vectors' last axis, if the root block declares the function.
    fn features(&self) -> Option<Dim> {
        None
    }

    /// Multi-token prediction, from `tokens` `[B, S]` and the hidden states `[B, S, D]` before them.
    #[track_caller]
    fn draft(
        &self,
        _tokens: Tensor<I32>,
        _hidden: Tensor<Self::Element>,
        _at: Position,
        _cache: &mut Cache<Self::Element>,
    ) -> Tensor<Self::Element> {
        no_function("draft");
        Tensor::new(Raw::POISON)
    }

    /// The hidden states' last axis, if the root block declares [`draft`](Self::draft).
    fn hidden(&self) -> Option<Dim> {
        None
    }

    /// Tokens `[B, S]`, of which `count` `[B]` are real, fill the state that decoder layers read.
    #[track_caller]
    fn encode(&self, _tokens: Tensor<I32>, _count: Tensor<I32>, _cache: &mut Cache<Self::Element>) {
        no_function("encode");
    }

    /// Features `[B, S, D]`, of which `count` `[B]` positions are real. They are f32 in a network of any type.
    #[track_caller]
    fn encode_features(
        &self,
        _features: Tensor<F32>,
        _count: Tensor<I32>,
        _cache: &mut Cache<Self::Element>,
    ) {
        no_function("encode_features");
    }

    /// The features' last axis, if the root block declares the function.
    fn encoder_features(&self) -> Option<Dim> {
        None
    }

    /// Computes logits over the vocabulary, `[…, V]`, from features `[…, D]`.
    fn logits(&self, features: Tensor<Self::Element>) -> Tensor<F32>;

    /// Records the trace of the given entry points. The recording of a trace reads no weights.
    ///
    /// Each entry point takes `tokens: i32[B,S]`, `start` and `count` (`i32[]`, or `i32[B]` for
    /// several sequences), and then the state of each layer. The [`LogitsMode`] selects whether the
    /// results `logits` and `token` exist. After the logits and the token, the entry point returns
    /// the updated state. An entry point with [`EntryInput::Features`] takes `features` instead of
    /// `tokens`. An entry point with [`EntryInput::Draft`] takes `tokens` and `features`, and the state
    /// of the layers that propose draft tokens. All other entry points take the state of all other
    /// layers. An entry point without logits takes no `start`, and fills the state of an encoder.
    ///
    /// # Errors
    /// Returns an error if a value in the configuration is invalid. If a function body contains
    /// errors, the function returns the first of these errors with its line of Rust code.
    fn trace(config: &Self::Config, entry_points: &[EntryPoint]) -> Result<Traced, TraceError> {
        record_all(&Self::new(config)?, Self::SHARDS, entry_points)
    }
}

const BATCH: Axis = Axis("B");
const TOKENS: Axis = Axis("S");

/// For a trait object, so that rustc compiles it once per element type.
fn record_all<T: Float>(
    network: &dyn Network<T>,
    shards: DeclaredShards,
    entry_points: &[EntryPoint],
) -> Result<Traced, TraceError> {
    let place = Location::caller();
    let steps = entry_points.iter().filter(|entry| entry.logits != LogitsMode::None);
    let chunk = steps.map(|entry| entry.chunk).max().unwrap_or(1);
    let mut recording = Recording::new(network).sharded(shards);
    for point in entry_points {
        recording = recording.entry_with(&point.name, |model, entry| {
            let sizes = Sizes { batch: point.batch, chunk, context: point.context };
            record(*model, entry, point, sizes, place);
        })?;
    }
    Ok(recording.finish())
}

/// Errors about the axes of logits name `place`.
fn record<T: Float>(
    model: &dyn Network<T>,
    entry: &mut EntryRecorder,
    point: &EntryPoint,
    sizes: Sizes,
    place: &'static Location<'static>,
) {
    tracer::with(|t| t.experts_mode = point.experts);
    if point.logits == LogitsMode::None {
        return record_encoder(model, entry, point, sizes);
    }
    let rows = if point.batch == 1 { vec![] } else { vec![BATCH.of(point.batch)] };
    let input = taken_input(entry, point, model.width(point));
    let start = entry.input("start", Role::Start { context: point.context }, &rows);
    let count = entry.input("count", Role::Count, &rows);
    let at = Position { start, count };
    let drafts = point.input == EntryInput::Draft;
    let state = model.state().into_iter().filter(|(_, state)| state.is_draft == drafts).collect();
    let (mut cache, kept) = taken(entry, state, point, sizes);
    let features = model.features(input, at, &mut cache);
    let favoured =
        |logits: Tensor<F32>| argmax(logits, logits.dims(place).last().map_or(Axis("V"), |d| d.axis));
    match point.logits {
        LogitsMode::All => entry.output("logits", Role::Logits, model.logits(features)),
        LogitsMode::Each => entry.output("token", Role::Token, favoured(model.logits(features))),
        LogitsMode::Verify => {
            let logits = model.logits(features);
            entry.output("logits", Role::Logits, logits);
            entry.output("token", Role::Token, favoured(logits));
        }
        LogitsMode::Next | LogitsMode::None => {
            let logits = model.logits(features.at(TOKENS, at.count - 1));
            entry.output("logits", Role::Logits, logits);
            entry.output("token", Role::Token, favoured(logits));
        }
    }
    if point.hidden {
        entry.output("hidden", Role::Hidden, features.to::<F32>());
    }
    returned(entry, &cache, kept);
}

fn record_encoder<T: Float>(
    model: &dyn Network<T>,
    entry: &mut EntryRecorder,
    point: &EntryPoint,
    sizes: Sizes,
) {
    let input = taken_input(entry, point, model.width(point));
    let count = entry.input("count", Role::Count, &[BATCH.of(point.batch)]);
    let memory = model.state().into_iter().filter(|(_, state)| state.is_memory).collect();
    let (mut cache, kept) = taken(entry, memory, point, sizes);
    model.encode(input, count, &mut cache);
    returned(entry, &cache, kept);
}

enum Input<T: Float> {
    Tokens(Tensor<I32>),
    Features(Tensor<T>),
    /// Of an encoder.
    Exact(Tensor<F32>),
    Draft(Tensor<I32>, Tensor<T>),
}

/// Token ids, vectors with the last axis `width`, or both.
fn taken_input<T: Float>(entry: &mut EntryRecorder, point: &EntryPoint, width: Option<Dim>) -> Input<T> {
    let places = [BATCH.of(point.batch), TOKENS.of(point.chunk)];
    match (point.input, width) {
        (EntryInput::Tokens, _) => Input::Tokens(entry.input("tokens", Role::Tokens, &places)),
        (EntryInput::Features, Some(width)) if point.logits == LogitsMode::None => {
            Input::Exact(entry.input("features", Role::Features, &[places[0], places[1], width]))
        }
        (EntryInput::Features, Some(width)) => {
            Input::Features(entry.input("features", Role::Features, &[places[0], places[1], width]))
        }
        (EntryInput::Draft, Some(width)) => {
            let tokens = entry.input("tokens", Role::Tokens, &places);
            Input::Draft(tokens, entry.input("features", Role::Features, &[places[0], places[1], width]))
        }
        (EntryInput::Features | EntryInput::Draft, None) => {
            let function = match (point.input, point.logits) {
                (EntryInput::Draft, _) => "draft",
                (_, LogitsMode::None) => "encode_features",
                _ => "forward_features",
            };
            entry.fail(TraceErrorKind::NoFunction { name: point.name.clone(), function });
            Input::Features(Tensor::new(Raw::POISON))
        }
    }
}

/// For each tensor of state; a result of the same name and role has its new value.
fn taken<T: Float>(
    entry: &mut EntryRecorder,
    state: Vec<(usize, LayerState)>,
    point: &EntryPoint,
    sizes: Sizes,
) -> (Cache<T>, Vec<StateTensor>) {
    let (mut cache, mut kept) = (Cache::new(point.context), Vec::new());
    let (format, fills) = (point.kv, point.logits == LogitsMode::None);
    for (layer, declared) in state {
        let arguments = StateArguments { entry, layer, format, sizes, fills, kept: &mut kept };
        cache.take(&declared, arguments);
    }
    (cache, kept)
}

/// Adds results for the new state of the layers, and for the state that an encoder fills.
fn returned<T: Float>(entry: &mut EntryRecorder, cache: &Cache<T>, kept: Vec<StateTensor>) {
    let mut tensors = Vec::new();
    cache.flatten(&mut tensors, &mut Vec::new());
    for (tensor, raw) in kept.into_iter().zip(tensors) {
        let StateTensor { name, role, dims, raw: before } = tensor;
        let is_memory = matches!(role, Role::Memory { .. });
        let fills = is_memory && before == Raw::POISON;
        match is_memory {
            true if fills && raw == Raw::POISON => entry.fail(TraceErrorKind::Unfilled { name }),
            true if fills => {
                entry.expect(&name, raw, &dims);
                entry.output_raw(name, role, raw);
            }
            true if raw != before => entry.fail(TraceErrorKind::Filled { name }),
            true => {}
            false => entry.output_raw(name, role, raw),
        }
    }
}

#[track_caller]
fn no_function(function: &'static str) {
    let place = Location::caller();
    tracer::with(|t| t.fail(TraceErrorKind::NoFunction { name: function.into(), function }, place));
}

/// [`CausalLm`] as a trait object.
trait Network<T: Float> {
    fn state(&self) -> Vec<(usize, LayerState)>;

    /// For the vectors that an entry point takes.
    fn width(&self, point: &EntryPoint) -> Option<Dim>;

    fn features(&self, input: Input<T>, at: Position, cache: &mut Cache<T>) -> Tensor<T>;

    fn encode(&self, input: Input<T>, count: Tensor<I32>, cache: &mut Cache<T>);

    fn logits(&self, features: Tensor<T>) -> Tensor<F32>;
}

impl<M: CausalLm> Network<M::Element> for M {
    fn state(&self) -> Vec<(usize, LayerState)> {
        CausalLm::state(self)
    }

    fn width(&self, point: &EntryPoint) -> Option<Dim> {
        match (point.logits, point.input) {
            (LogitsMode::None, _) => self.encoder_features(),
            (_, EntryInput::Draft) => self.hidden(),
            _ => CausalLm::features(self),
        }
    }

    fn features(
        &self,
        input: Input<M::Element>,
        at: Position,
        cache: &mut Cache<M::Element>,
    ) -> Tensor<M::Element> {
        match input {
            Input::Tokens(tokens) => self.forward(tokens, at, cache),
            Input::Features(features) => self.forward_features(features, at, cache),
            Input::Draft(tokens, hidden) => self.draft(tokens, hidden, at, cache),
            Input::Exact(features) => self.forward_features(features.to(), at, cache),
        }
    }

    fn encode(&self, input: Input<M::Element>, count: Tensor<I32>, cache: &mut Cache<M::Element>) {
        match input {
            Input::Tokens(tokens) => CausalLm::encode(self, tokens, count, cache),
            Input::Exact(features) => self.encode_features(features, count, cache),
            Input::Features(features) => self.encode_features(features.to(), count, cache),
            Input::Draft(..) => no_function("draft"),
        }
    }

    fn logits(&self, features: Tensor<M::Element>) -> Tensor<F32> {
        CausalLm::logits(self, features)
    }
}
