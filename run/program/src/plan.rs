//! [`Plan`] contains a model, and the sizes and formats for which the model's program is built.

use dsl::{EntryPoint, ExpertsMode, LogitsMode, TraceError, Traced};
use irpa::Checkpoint;
use lower::{LowerError, Weights};
use models::{ModelKind, Opened};
use ops::ElementType;
use simplify::{Options, Rules};
use targets::{Target, Tuning};
use trace::{KvFormat, ParameterConflict, Trace};

use crate::quant_map::QuantMapError;
use crate::{Expanded, Lowered, StagedTrace};

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
pub struct Plan {
    /// The model's network.
    pub model: Opened,
    /// The type of weights and activations: f32, f16 or bf16.
    pub element: ElementType,
    /// The largest number of tokens in a sequence.
    pub context: usize,
    /// The number of tokens that one prefill call processes for each sequence.
    pub chunk: usize,
    /// The number of sequences that one call of the network processes. By default, one call of the
    /// network processes one sequence.
    pub batch: usize,
    /// The storage format of cached keys and values. By default, keys and values have the network's
    /// element type.
    pub kv: KvFormat,
    /// The target for which the network is compiled. By default, the network is compiled for this machine.
    pub target: Target,
    /// The rewrite rules with which Tracewright simplifies the trace. By default, Tracewright
    /// applies only rules that keep every bit of the results.
    pub rules: Rules,
    /// The storage format of weights, and whether kernels compute matmuls. By default, kernels
    /// compute matmuls. The default storage format is the checkpoint's quantization, or the element
    /// type if the checkpoint is not quantized.
    pub weights: Weights,
}

/// The reason why a plan is invalid, or why the plan's network cannot be recorded or lowered.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The requested context is not between 1 and the longest context that the model supports.
    #[error(
        "the option `context` is {found}, expected 1 to {longest} tokens, the longest context that the model supports"
    )]
    Context {
        /// The context length that the caller requested, in tokens.
        found: usize,
        /// The longest context that is possible, in tokens.
        longest: usize,
    },
    /// The requested number of tokens per prefill call (the chunk) is not between 1 and the length
    /// of the context.
    #[error("the option `chunk` is {found}, expected 1 to {context} tokens, the length of the context")]
    Chunk {
        /// The number of tokens per prefill call that the caller requested.
        found: usize,
        /// The context length of the plan, in tokens.
        context: usize,
    },
    /// The requested length of texts is larger than the model's limit.
    #[error(
        "the option `length` is {found}, expected 1 to {longest} tokens, the longest text that the model supports"
    )]
    Length {
        /// The length that the caller requested, in tokens.
        found: usize,
        /// The longest text that the model can process, in tokens.
        longest: usize,
    },
    /// The element type is not f32, f16 or bf16.
    #[error("the option `element` is {0}, expected f32, f16 or bf16")]
    Element(ElementType),
    /// The network cannot be recorded, because its declaration or its configuration has an error.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The recorded trace cannot be lowered.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// Two entry points of a network declare the same parameter with different types.
    #[error(transparent)]
    Parameter(#[from] ParameterConflict),
    /// The file with the formats of weight matrices cannot be read.
    #[error(transparent)]
    QuantMap(#[from] QuantMapError),
}

/// The default number of tokens per prefill call. In a call with fewer than 128 tokens, the memory
/// bandwidth limits the speed of matmuls. In a call with more than 128 tokens, the processor's
/// arithmetic limits the speed of matmuls.
const CHUNK: usize = 128;

impl Plan {
    /// Creates a plan for a model. `None` selects the model's element type, the longest context
    /// that the model supports, and a chunk of 128 tokens.
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
                ModelKind::Text => PlanError::Context { found: context, longest },
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
        Ok(Self { model, element, context, chunk, batch: 1, kv, target, rules, weights })
    }

    /// Returns a context length that has room for `tokens` tokens. The context is a power of two, but at most
    /// `longest`. Because contexts are powers of two, Tracewright compiles only a few different modules.
    pub fn context_for(tokens: usize, longest: usize) -> usize {
        rounded_up(tokens, 512, longest)
    }

    /// Returns the entry points of the model; see [`ModelKind::entry_points`].
    pub fn entry_points(&self) -> Vec<EntryPoint> {
        self.remembering(self.model.entry_points(self.batch, self.chunk, self.context))
    }

    /// Returns all entry points except the entry point that computes scores.
    pub fn steps(&self) -> Vec<EntryPoint> {
        self.steps_of(self.chunk, self.context)
    }

    /// Returns the entry points of an export for IREE, which are all entry points of the model. If
    /// the model predicts tokens, the export contains the entry point that verifies draft tokens.
    pub fn exported(&self) -> Vec<EntryPoint> {
        let mut entries = self.entry_points();
        if entries.iter().any(|entry| entry.logits == LogitsMode::Next) {
            entries.extend(self.verifier());
        }
        entries.into_iter().flat_map(EntryPoint::in_parts).collect()
    }

    /// Returns the entry point that verifies draft tokens. Reading the weights from memory takes
    /// most of the time of a call. A call that verifies several draft tokens takes little longer
    /// than a call for a single token.
    pub fn verifier(&self) -> Vec<EntryPoint> {
        self.remembering(vec![EntryPoint::verify(self.batch, self.width(), self.context)])
    }

    /// The number of tokens that the entry point `verify` takes.
    fn width(&self) -> usize {
        const WIDTH: usize = 8;
        WIDTH.min(self.context)
    }

    /// Adds the entry points that run the network's module for multi-token prediction. All given
    /// entry points that choose tokens also return the hidden states that the module reads.
    pub fn with_mtp(&self, entries: Vec<EntryPoint>) -> Vec<EntryPoint> {
        let hidden = |entry: EntryPoint| match entry.logits {
            LogitsMode::Next | LogitsMode::Verify => entry.with_hidden(),
            _ => entry,
        };
        let drafts = EntryPoint::drafts(self.chunk, self.width(), self.context);
        entries.into_iter().map(hidden).chain(self.remembering(drafts)).collect()
    }

    /// Returns the same entry points as [`steps`](Self::steps), but with the given chunk and context.
    pub fn steps_of(&self, chunk: usize, context: usize) -> Vec<EntryPoint> {
        let mut entries = self.model.entry_points(self.batch, chunk, context);
        entries.retain(|entry| entry.logits != LogitsMode::All);
        self.remembering(entries)
    }

    /// Applies measured settings, such as the tile sizes of kernels, to the plan. If `chunk` is
    /// set, the plan ignores the tuning's number of tokens per prefill call.
    pub fn tuned(self, tuning: Tuning, chunk: Option<usize>) -> Self {
        let measured = tuning.chunk.filter(|_| chunk.is_none());
        let chunk = measured.map_or(self.chunk, |chunk| chunk.get().min(self.context));
        let tuning = Tuning { chunk: measured, ..tuning };
        Self { chunk, target: Target { tuning, ..self.target }, ..self }
    }

    fn remembering(&self, entries: Vec<EntryPoint>) -> Vec<EntryPoint> {
        entries.into_iter().map(|entry| EntryPoint { kv: self.kv, ..entry }).collect()
    }

    /// Returns the options with which Tracewright simplifies a trace of the plan.
    pub fn simplification(&self, trace: &Trace) -> Result<Options, PlanError> {
        let quantize = lower::resolved(&self.weights.quantize, trace).map_err(LowerError::from)?;
        Ok(Options { formats: quantize.formats(), ..Options::new(self.rules, &self.target) })
    }

    /// Renames the checkpoint's tensors to the names that the network declares.
    pub fn named(&self, checkpoint: Checkpoint) -> Checkpoint {
        self.model.named(checkpoint)
    }

    /// Records the trace of all entry points of the network.
    pub fn trace(&self) -> Result<Traced, PlanError> {
        self.record(&self.entry_points())
    }

    /// Records the trace of the given entry points.
    pub fn record(&self, entries: &[EntryPoint]) -> Result<Traced, PlanError> {
        let traced = self.recorded(entries)?;
        Ok(Traced { trace: traced.trace.with_formats(&self.weights.quantize), ..traced })
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

    /// Simplifies a trace of the plan, and expands the trace to primitives. The trace contains all
    /// or some of the entry points that [`trace`](Self::trace) records.
    pub fn expand(&self, trace: &Trace) -> Result<Expanded, PlanError> {
        Ok(Expanded::new(trace, self.rules, self.target.clone(), self.weights.clone())?)
    }

    /// Lowers a trace, and returns the trace after each stage of the lowering.
    pub fn stages(&self, trace: &Trace) -> Result<StagedTrace, PlanError> {
        Ok(StagedTrace::new(trace, self.rules, self.target.clone(), self.weights.clone())?)
    }

    /// Simplifies and lowers a trace of the plan. The trace contains all or some of the entry
    /// points that [`trace`](Self::trace) records.
    pub fn lower(&self, trace: &Trace) -> Result<Lowered, PlanError> {
        Ok(self.expand(trace)?.lower(self.model.ignorable.clone())?)
    }
}

/// Returns the type of weights and activations. The default type is f32.
fn computed_in(wanted: Option<ElementType>) -> Result<ElementType, PlanError> {
    match wanted.unwrap_or(ElementType::F32) {
        element @ (ElementType::F32 | ElementType::F16 | ElementType::Bf16) => Ok(element),
        other => Err(PlanError::Element(other)),
    }
}

/// Returns the smallest number `least` · 2ⁿ that is at least `tokens`, limited to `longest`.
pub fn rounded_up(tokens: usize, least: usize, longest: usize) -> usize {
    tokens.checked_next_power_of_two().unwrap_or(longest).max(least).min(longest)
}
