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

/// A network that predicts the next token. [`model!`](crate::model) implements this trait for a root block
/// that declares a `cache` and the functions `forward` and `logits`.
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

    /// Computes features from vectors `[B, S, D]` instead of token ids. If the root block of
    /// [`model!`](crate::model) declares `forward_features`, this method calls that function.
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

    /// The last axis of the vectors that [`forward_features`](Self::forward_features) takes; `None` if the
    /// root block declares no such function.
    fn features(&self) -> Option<Dim> {
        None
    }

    /// Computes features with the network's module for multi-token prediction, from the token ids
    /// `tokens` `[B, S]` and the hidden states `hidden` `[B, S, D]` of the positions before the tokens.
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

    /// The last axis of the hidden states that [`draft`](Self::draft) takes; `None` if the root block
    /// declares no such function.
    fn hidden(&self) -> Option<Dim> {
        None
    }

    /// Runs an encoder on tokens `[B, S]`. The first `count` `[B]` tokens of each sequence are real, and the
    /// later tokens are padding. The encoder fills the state that decoder layers read.
    #[track_caller]
    fn encode(&self, _tokens: Tensor<I32>, _count: Tensor<I32>, _cache: &mut Cache<Self::Element>) {
        no_function("encode");
    }

    /// Runs an encoder on features `[B, S, D]`. The first `count` `[B]` positions of each sequence are real,
    /// and the later positions are padding.
    #[track_caller]
    fn encode_features(
        &self,
        _features: Tensor<Self::Element>,
        _count: Tensor<I32>,
        _cache: &mut Cache<Self::Element>,
    ) {
        no_function("encode_features");
    }

    /// The last axis of the features that [`encode_features`](Self::encode_features) takes; `None` if the
    /// root block declares no such function.
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

/// Records the given entry points of a network. The network is a trait object, so rustc compiles
/// this function once for each element type, and not for each network.
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

/// Records one entry point of a network. `place` is the line of Rust code in errors about the axes
/// of the logits.
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

/// Records an entry point that runs an encoder.
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

/// The main input of an entry point.
enum Input<T: Float> {
    Tokens(Tensor<I32>),
    Features(Tensor<T>),
    Draft(Tensor<I32>, Tensor<T>),
}

/// Creates the main arguments of an entry point: token ids, vectors with the last axis `width`, or
/// token ids and vectors.
fn taken_input<T: Float>(entry: &mut EntryRecorder, point: &EntryPoint, width: Option<Dim>) -> Input<T> {
    let places = [BATCH.of(point.batch), TOKENS.of(point.chunk)];
    match (point.input, width) {
        (EntryInput::Tokens, _) => Input::Tokens(entry.input("tokens", Role::Tokens, &places)),
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

/// Creates an argument for each tensor of each layer's state. A result with the name and role of
/// the argument returns the state tensor's new value.
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

/// The functions of a [`CausalLm`] that the recording of an entry point calls. Unlike [`CausalLm`],
/// this trait can be a trait object.
trait Network<T: Float> {
    fn state(&self) -> Vec<(usize, LayerState)>;

    /// The last axis of the vectors that an entry point takes. The value is `None` if the root block
    /// declares no function for these vectors.
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
        }
    }

    fn encode(&self, input: Input<M::Element>, count: Tensor<I32>, cache: &mut Cache<M::Element>) {
        match input {
            Input::Tokens(tokens) => CausalLm::encode(self, tokens, count, cache),
            Input::Features(features) => self.encode_features(features, count, cache),
            Input::Draft(..) => no_function("draft"),
        }
    }

    fn logits(&self, features: Tensor<M::Element>) -> Tensor<F32> {
        CausalLm::logits(self, features)
    }
}
