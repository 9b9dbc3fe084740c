//! [`Plan`] contains a model, and the sizes and formats for which the model's program is built.

use dsl::{EntryPoint, ExpertsMode, LogitsMode, TraceError, Traced};
use irpa::Checkpoint;
use lower::{LowerError, Weights};
use models::{ModelKind, Opened};
use ops::{ElementType, InferError};
use simplify::{Options, Rules};
use targets::{Target, Tuning};
use trace::{KvFormat, ParameterConflict, Trace};

use crate::quant_map::QuantMapError;
use crate::{AdapterRoom, Expanded, Lowered, StagedTrace};

/// A model, and the sizes and formats for which the model's program is built.
///
/// ```
/// use std::path::Path;
///
/// use models::ModelConfig;
/// use tracewright_program::Plan;
///
/// // No weight is read for this.
/// let model = ModelConfig::read(Path::new("../../demo"), &[])?;
/// let plan = Plan::new(model, None, Some(64), Some(8))?;
/// let lowered = plan.lower(&plan.trace()?.trace)?;
/// assert!(lowered.module.text.contains("@decode"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Plan {
    pub model: Opened,
    /// The type of weights and activations: f32, f16 or bf16.
    pub element: ElementType,
    /// Tokens of a sequence.
    pub context: usize,
    /// The number of tokens that one prefill call processes for each sequence.
    pub chunk: usize,
    /// Sequences per call.
    pub batch: usize,
    /// By default, the network's element type.
    pub kv: KvFormat,
    pub target: Target,
    /// By default, only rules that keep every bit of the results.
    pub rules: Rules,
    /// By default, kernels compute matmuls, and weights are stored as in the checkpoint.
    pub weights: Weights,
    /// Adapters among which each sequence chooses.
    pub adapters: Option<AdapterRoom>,
}

/// The reason why a plan is invalid, or why the plan's network cannot be recorded or lowered.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The requested context is not between 1 and the longest context that the model supports.
    #[error(
        "the option `context` is {found}, expected 1 to {longest} tokens, the longest context that the model supports"
    )]
    Context {
        /// In tokens.
        found: usize,
        /// In tokens.
        longest: usize,
    },
    /// Not between 1 and the context.
    #[error("the option `chunk` is {found}, expected 1 to {context} tokens, the length of the context")]
    Chunk {
        /// The number of tokens per prefill call that the caller requested.
        found: usize,
        /// In tokens.
        context: usize,
    },
    /// The requested length of texts is larger than the model's limit.
    #[error(
        "the option `length` is {found}, expected 1 to {longest} tokens, the longest text that the model supports"
    )]
    Length {
        /// In tokens.
        found: usize,
        /// In tokens.
        longest: usize,
    },
    /// Not f32, f16 or bf16.
    #[error("the option `element` is {0}, expected f32, f16 or bf16")]
    Element(ElementType),
    /// The network cannot be recorded, because its declaration or its configuration has an error.
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// A linear layer cannot have adapters.
    #[error("adapters cannot be added to the network")]
    Adapters(#[source] InferError),
    /// Two entry points of a network declare the same parameter with different types.
    #[error(transparent)]
    Parameter(#[from] ParameterConflict),
    /// The file with the formats of weight matrices cannot be read.
    #[error(transparent)]
    QuantMap(#[from] QuantMapError),
}

/// Tokens per prefill call. With fewer, memory bandwidth limits matmuls; with more, arithmetic does.
const CHUNK: usize = 128;

impl Plan {
    /// `None` selects the model's element type, the longest context, and a chunk of 128 tokens.
    pub fn new(
        model: impl Into<Opened>,
        element: Option<ElementType>,
        context: Option<usize>,
        chunk: Option<usize>,
    ) -> Result<Self, PlanError> {
        let model = model.into();
        let longest = model.max_context();
        let context = context.unwrap_or_else(|| longest.min(2048));
        if !(1..=longest).contains(&context) {
            return Err(match model.kind {
                ModelKind::Embedding(_) => PlanError::Length { found: context, longest },
                ModelKind::Text | ModelKind::Tower(_) | ModelKind::Alignment | ModelKind::Speech(_) => {
                    PlanError::Context { found: context, longest }
                }
            });
        }
        let chunk = chunk.unwrap_or(CHUNK.min(context));
        if !(1..=context).contains(&chunk) {
            return Err(PlanError::Chunk { found: chunk, context });
        }
        let element = computed_in(element.or(model.element()))?;
        let weights = Weights { quantize: model.stored.clone(), ..Weights::default() };
        let (target, rules) = (Target::host(), Rules::default());
        let kv = KvFormat::default();
        let (batch, adapters) = (1, None);
        Ok(Self { model, element, context, chunk, batch, kv, target, rules, weights, adapters })
    }

    /// A power of two, so that only a few modules are compiled, but at most `longest`.
    pub fn context_for(tokens: usize, longest: usize) -> usize {
        rounded_up(tokens, 512, longest)
    }

    /// See [`ModelKind::entry_points`].
    pub fn entry_points(&self) -> Vec<EntryPoint> {
        self.remembering(self.model.entry_points(self.batch, self.chunk, self.context))
    }

    /// Without the one that computes scores.
    pub fn steps(&self) -> Vec<EntryPoint> {
        self.steps_of(self.chunk, self.context)
    }

    /// For IREE: all, with the one that verifies draft tokens if the model predicts tokens.
    pub fn exported(&self) -> Vec<EntryPoint> {
        let mut entries = self.entry_points();
        if entries.iter().any(|entry| entry.logits == LogitsMode::Next) {
            entries.extend(self.verifier());
        }
        entries.into_iter().flat_map(EntryPoint::in_parts).collect()
    }

    /// Verifies draft tokens. Most of a call's time is reading weights, so several tokens take little longer
    /// than one.
    pub fn verifier(&self) -> Vec<EntryPoint> {
        self.remembering(vec![EntryPoint::verify(self.batch, self.width(), self.context)])
    }

    /// Takes up to `chunk` vectors, such as the features of an image, in place of tokens.
    pub fn features(&self, chunk: usize) -> Vec<EntryPoint> {
        let chunk = chunk.clamp(1, self.context);
        let entry = EntryPoint::new("prefill_features", self.batch, chunk, self.context, LogitsMode::Next);
        self.remembering(vec![entry.of_features()])
    }

    /// The number of tokens that the entry point `verify` takes.
    fn width(&self) -> usize {
        const WIDTH: usize = 8;
        WIDTH.min(self.context)
    }

    /// Adds multi-token prediction. Entry points that choose tokens then also return its hidden states.
    pub fn with_mtp(&self, entries: Vec<EntryPoint>) -> Vec<EntryPoint> {
        let hidden = |entry: EntryPoint| match entry.logits {
            LogitsMode::Next | LogitsMode::Verify => entry.with_hidden(),
            _ => entry,
        };
        let drafts = EntryPoint::drafts(self.chunk, self.width(), self.context);
        entries.into_iter().map(hidden).chain(self.remembering(drafts)).collect()
    }

    /// Like [`steps`](Self::steps), with this chunk and context.
    pub fn steps_of(&self, chunk: usize, context: usize) -> Vec<EntryPoint> {
        let mut entries = self.model.entry_points(self.batch, chunk, context);
        entries.retain(|entry| entry.logits != LogitsMode::All);
        self.remembering(entries)
    }

    /// Applies measured settings. `chunk` takes precedence over the tuning's.
    pub fn tuned(self, tuning: Tuning, chunk: Option<usize>) -> Self {
        let measured = tuning.chunk.filter(|_| chunk.is_none());
        let chunk = measured.map_or(self.chunk, |chunk| chunk.get().min(self.context));
        let tuning = Tuning { chunk: measured, ..tuning };
        Self { chunk, target: Target { tuning, ..self.target }, ..self }
    }

    fn remembering(&self, entries: Vec<EntryPoint>) -> Vec<EntryPoint> {
        entries.into_iter().map(|entry| EntryPoint { kv: self.kv, ..entry }).collect()
    }

    pub fn simplification(&self, trace: &Trace) -> Result<Options, PlanError> {
        let quantize = lower::resolved(&self.weights.quantize, trace).map_err(LowerError::from)?;
        Ok(Options { formats: quantize.formats(), ..Options::new(self.rules, &self.target) })
    }

    /// Renames the checkpoint's tensors to the names that the network declares.
    pub fn named(&self, checkpoint: Checkpoint) -> Checkpoint {
        self.model.named(checkpoint)
    }

    pub fn trace(&self) -> Result<Traced, PlanError> {
        self.record(&self.entry_points())
    }

    pub fn record(&self, entries: &[EntryPoint]) -> Result<Traced, PlanError> {
        let traced = self.recorded(entries)?;
        let trace = traced.trace.with_formats(&self.weights.quantize);
        let trace = match &self.adapters {
            Some(adapters) => adapters
                .add_to(&trace, self.weights.have_kernels(&self.target))
                .map_err(PlanError::Adapters)?,
            None => trace,
        };
        Ok(Traced { trace, ..traced })
    }

    fn recorded(&self, entries: &[EntryPoint]) -> Result<Traced, PlanError> {
        if !self.weights.have_kernels(&self.target) {
            return Ok(self.model.trace(self.element, entries)?);
        }
        // A kernel reads the matrices of the experts that a token chose.
        let chosen = |entry: &EntryPoint| match entry.experts {
            ExpertsMode::Auto => EntryPoint { experts: ExpertsMode::Chosen, ..entry.clone() },
            ExpertsMode::Chosen | ExpertsMode::All => entry.clone(),
        };
        Ok(self.model.trace(self.element, &entries.iter().map(chosen).collect::<Vec<_>>())?)
    }

    /// For all or some of the entry points that [`trace`](Self::trace) records.
    pub fn expand(&self, trace: &Trace) -> Result<Expanded, PlanError> {
        Ok(Expanded::new(trace, self.rules, self.target.clone(), self.weights.clone())?)
    }

    /// The trace after each stage.
    pub fn stages(&self, trace: &Trace) -> Result<StagedTrace, PlanError> {
        Ok(StagedTrace::new(trace, self.rules, self.target.clone(), self.weights.clone())?)
    }

    /// For all or some of the entry points that [`trace`](Self::trace) records.
    pub fn lower(&self, trace: &Trace) -> Result<Lowered, PlanError> {
        Ok(self.expand(trace)?.lower(self.model.ignorable.clone())?)
    }
}

/// The type of weights and activations, by default f32.
fn computed_in(wanted: Option<ElementType>) -> Result<ElementType, PlanError> {
    match wanted.unwrap_or(ElementType::F32) {
        element @ (ElementType::F32 | ElementType::F16 | ElementType::Bf16) => Ok(element),
        other => Err(PlanError::Element(other)),
    }
}

/// The smallest `least` · 2ⁿ ≥ `tokens`, limited to `longest`.
fn rounded_up(tokens: usize, least: usize, longest: usize) -> usize {
    tokens.checked_next_power_of_two().unwrap_or(longest).max(least).min(longest)
}
