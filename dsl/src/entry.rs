//! Entry points: what a runtime calls.

use ops::{ElementType, TensorType};
use std::panic::Location;
use trace::{NodeKind, Trace};

use crate::block::TraceArg;
use crate::element::{Element, F32, Float, I32};
use crate::nn::{RING, argmax};
use crate::tensor::Raw;
use crate::tracer;
use crate::{Axis, BuildError, Dim, Kv, KvCache, Position, Tensor, TraceError, TraceErrorKind};

/// The keys and values that one layer remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLayer {
    /// The axis of key-value heads.
    pub heads: Dim,
    /// The axis of a head's features.
    pub features: Dim,
    /// How many positions a query sees, its own included, if not all: then a ring of slots is enough.
    pub window: Option<usize>,
}

/// A network that predicts the next token. [`model!`](crate::model) implements it for a root block that declares a
/// `cache` and the functions `forward` and `score`.
pub trait CausalLm: Sized {
    /// The default element type.
    type Element: Float;
    /// The configuration.
    type Config;

    /// The network of a configuration.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    fn new(config: &Self::Config) -> Result<Self, BuildError>;

    /// What each layer remembers.
    fn cache_layers(&self) -> Vec<CacheLayer>;

    /// Logits `[B, V]` after the last real token of `tokens` `[B, S]`.
    fn forward(&self, tokens: Tensor<I32>, at: Position, cache: &mut KvCache<Self::Element>) -> Tensor<F32>;

    /// Logits `[B, S, V]` after each token.
    fn score(&self, tokens: Tensor<I32>, at: Position, cache: &mut KvCache<Self::Element>) -> Tensor<F32>;

    /// The trace of these entry points. No weight is read.
    ///
    /// # Errors
    /// What is wrong with the configuration, or the first error of a forward body with its Rust line.
    fn trace(config: &Self::Config, entry_points: &[EntryPoint]) -> Result<Traced, TraceError> {
        trace_entry_points::<Self>(config, entry_points)
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
}

impl EntryPoint {
    /// `prefill` (chunks of `chunk` tokens), `decode` (one token) and `score` (all positions of a chunk).
    pub fn all(batch: usize, chunk: usize, context: usize) -> Vec<Self> {
        let entry = |name: &str, chunk, wanted| Self { name: name.into(), batch, chunk, context, wanted };
        vec![
            entry("prefill", chunk, Wanted::Next),
            entry("decode", 1, Wanted::Next),
            entry("score", chunk, Wanted::All),
        ]
    }
}

/// A trace, and how it was recorded.
#[derive(Clone, Debug)]
pub struct Traced {
    /// The trace.
    pub trace: Trace,
    /// The longest sequence.
    pub context: usize,
    /// How many bodies of repeated blocks ran: one for each kind, not for each layer.
    pub body_runs: usize,
}

/// Records the entry points of a network: see [`CausalLm::trace`].
///
/// Each takes `tokens: i32[B,S]`, `start: i32[]` (the position of the first token), `count: i32[]` (how many
/// tokens are real), in a batch of several `pad: i32[B]` (how many positions stand before each sequence's first
/// token), then keys and values of each layer: `[B, K, N, E]` with N = context, or, where a window and the longest
/// chunk need fewer, a ring of window + chunk − 1 slots; and returns `logits`, for [`Wanted::Next`] also `token`
/// (`i32[B]`, the argmax), then keys and values.
///
/// # Errors
/// See [`CausalLm::trace`].
pub fn trace_entry_points<M: CausalLm>(
    config: &M::Config,
    entry_points: &[EntryPoint],
) -> Result<Traced, TraceError> {
    let (trace, body_runs) = tracer::trace_fallible(|| {
        let model = M::new(config)?;
        let chunk = entry_points.iter().map(|entry| entry.chunk).max().unwrap_or(1);
        for entry in entry_points {
            record(&model, entry, chunk);
        }
        Ok::<(), TraceErrorKind>(())
    })?;
    let context = entry_points.iter().map(|entry| entry.context).max().unwrap_or_default();
    Ok(Traced { trace, context, body_runs })
}

/// Records one entry point of a module whose longest chunk has `chunk` tokens.
fn record<M: CausalLm>(model: &M, entry: &EntryPoint, chunk: usize) {
    let place = Location::caller();
    tracer::with(|t| t.open_function(entry.name.clone(), "", None));
    let mut index = 0;
    let mut input = |name: String, element: ElementType, shape: &[usize], axes: &[&'static str]| {
        let axes: Vec<Axis> = axes.iter().map(|name| Axis(name)).collect();
        let kind = NodeKind::Input { index, name };
        index += 1;
        let ty = TensorType::new(element, shape);
        tracer::with(|t| t.node(kind, vec![ty], &[], &axes, place)).unwrap_or(Raw::POISON)
    };
    let tokens = Tensor::<I32>::new(input(
        "tokens".into(),
        ElementType::I32,
        &[entry.batch, entry.chunk],
        &["B", "S"],
    ));
    let start = Tensor::new(input("start".into(), ElementType::I32, &[], &[]));
    let count = Tensor::new(input("count".into(), ElementType::I32, &[], &[]));
    let pad =
        (entry.batch > 1).then(|| Tensor::new(input("pad".into(), ElementType::I32, &[entry.batch], &["B"])));
    let mut layers = Vec::new();
    for (i, layer) in model.cache_layers().into_iter().enumerate() {
        let ring = layer.window.map(|window| window + chunk - 1).filter(|&slots| slots < entry.context);
        let (slots, axis) = ring.map_or((entry.context, "N"), |slots| (slots, RING.0));
        let mut slots = |name: &str| {
            let (heads, features) = (layer.heads, layer.features);
            let shape = [entry.batch, heads.extent, slots, features.extent];
            let axes = ["B", heads.axis.0, axis, features.axis.0];
            Tensor::new(input(format!("{name}{i}"), M::Element::TYPE, &shape, &axes))
        };
        layers.push(Kv { k: slots("k"), v: slots("v") });
    }
    let mut cache = KvCache { layers, context: entry.context };
    let at = Position { start, count, pad };
    let mut outputs = Vec::new();
    match entry.wanted {
        Wanted::Next => {
            let logits = model.forward(tokens, at, &mut cache);
            let vocabulary = logits.dims(place).last().map_or(Axis("V"), |d| d.axis);
            outputs.push(("logits".to_owned(), logits.raw));
            outputs.push(("token".to_owned(), argmax(logits, vocabulary).raw));
        }
        Wanted::All => outputs.push(("logits".to_owned(), model.score(tokens, at, &mut cache).raw)),
    }
    let mut state = Vec::new();
    cache.layers.flatten(&mut state, &mut Vec::new());
    let names = (0..cache.layers.len()).flat_map(|i| [format!("k{i}"), format!("v{i}")]);
    outputs.extend(names.zip(state));
    tracer::with(|t| {
        if let Some(function) = t.close_function(outputs, place) {
            t.add_function(function, true);
        }
    });
}
