//! What to build from a configuration: element type, context, chunk.

use dsl::{EntryPoint, TraceError, Traced};
use irpa::Checkpoint;
use lower::{LowerError, Weights};
use models::Architecture;
use ops::ElementType;
use simplify::{Options, Rules};
use targets::{Target, Tuning};
use trace::{KvFormat, ParameterConflict, Trace};

use crate::{Expanded, Lowered, StagedTrace};

/// A model and the sizes it is built for.
///
/// ```
/// use std::path::Path;
///
/// use tracewright::Plan;
/// use tracewright::models::ModelConfig;
///
/// // No weight is read for this.
/// let model = ModelConfig::read(Path::new("demo"), &[])?;
/// let plan = Plan::new(Box::new(model), None, Some(64), Some(8))?;
/// let lowered = plan.lower(&plan.trace()?.trace)?;
/// assert!(lowered.module.text.contains("@decode"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Plan {
    /// The model.
    pub model: Box<dyn Architecture>,
    /// The type of weights and activations: f32, f16 or bf16.
    pub element: ElementType,
    /// The longest sequence.
    pub context: usize,
    /// Tokens of a sequence that one prefill takes.
    pub chunk: usize,
    /// Sequences at once; 1 unless changed.
    pub batch: usize,
    /// How keys and values are remembered; as the network computes with them unless changed.
    pub kv: KvFormat,
    /// What it is built for; this machine unless changed.
    pub target: Target,
    /// The rules that simplify the trace; exact ones unless changed.
    pub rules: Rules,
    /// How weights are stored, and who multiplies with them; by kernels, as the checkpoint holds them in groups and else as
    /// the network computes, unless changed.
    pub weights: Weights,
}

/// Why a plan cannot be carried out.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A context that the model or the chunk does not allow.
    #[error("`context` is {found}, expected 1 to {longest}, the longest that the model was made for")]
    Context {
        /// The context asked for.
        found: usize,
        /// The longest possible.
        longest: usize,
    },
    /// A chunk that does not fit into the context.
    #[error("`chunk` is {found}, expected 1 to {context}, the context")]
    Chunk {
        /// The chunk asked for.
        found: usize,
        /// The context.
        context: usize,
    },
    /// A length of texts that the model does not allow.
    #[error("`length` is {found}, expected 1 to {longest}, the longest text that the model was made for")]
    Length {
        /// The length asked for.
        found: usize,
        /// The longest possible.
        longest: usize,
    },
    /// An element type that models do not compute with.
    #[error("`element` is {0}, expected f32, f16 or bf16")]
    Element(ElementType),
    /// Recording failed.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Lowering failed.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// A parameter with two types.
    #[error(transparent)]
    Parameter(#[from] ParameterConflict),
}

/// Tokens that one prefill takes unless said otherwise: where the matrix products become compute-bound.
const CHUNK: usize = 128;

impl Plan {
    /// A plan with what the model's configuration says, and for the rest these choices.
    ///
    /// # Errors
    /// If the context is longer than the model's, the chunk longer than the context, or the element type is none
    /// that models compute with.
    pub fn new(
        model: Box<dyn Architecture>,
        element: Option<ElementType>,
        context: Option<usize>,
        chunk: Option<usize>,
    ) -> Result<Self, PlanError> {
        let longest = model.max_context();
        let context = context.unwrap_or_else(|| longest.min(2048));
        if !(1..=longest).contains(&context) {
            return Err(PlanError::Context { found: context, longest });
        }
        let chunk = chunk.unwrap_or(CHUNK.min(context));
        if !(1..=context).contains(&chunk) {
            return Err(PlanError::Chunk { found: chunk, context });
        }
        let element = computed_in(element.or(model.element()))?;
        let weights = Weights { quantize: model.stored(), ..Weights::default() };
        let (target, rules) = (Target::host(), Rules::default());
        let kv = KvFormat::default();
        Ok(Self { model, element, context, chunk, batch: 1, kv, target, rules, weights })
    }

    /// The context that `tokens` tokens need: a power of two, so that few different modules are compiled, and
    /// at most `longest`.
    pub fn context_for(tokens: usize, longest: usize) -> usize {
        rounded_up(tokens, 512, longest)
    }

    /// The model's entry points: see [`Architecture::entry_points`].
    pub fn entry_points(&self) -> Vec<EntryPoint> {
        self.remembering(self.model.entry_points(self.batch, self.chunk, self.context))
    }

    /// Those that choose tokens.
    pub fn steps(&self) -> Vec<EntryPoint> {
        self.steps_of(self.chunk, self.context)
    }

    /// The entry point that verifies drafts. A call for this many tokens costs little more than one for a single token, where
    /// weights are read from memory.
    pub fn verifier(&self) -> Vec<EntryPoint> {
        const WIDTH: usize = 8;
        self.remembering(vec![EntryPoint::verify(self.batch, WIDTH.min(self.context), self.context)])
    }

    /// The entry points of [`steps`](Self::steps) for another chunk and another context.
    pub fn steps_of(&self, chunk: usize, context: usize) -> Vec<EntryPoint> {
        self.remembering(EntryPoint::steps(self.batch, chunk, context))
    }

    /// The same plan, made as a tuning says, but with the chunk that was asked for, if one was.
    pub fn tuned(self, tuning: Tuning, chunk: Option<usize>) -> Self {
        let measured = tuning.chunk.filter(|_| chunk.is_none());
        let chunk = measured.map_or(self.chunk, |chunk| chunk.get().min(self.context));
        let tuning = Tuning { chunk: measured, ..tuning };
        Self { chunk, target: Target { tuning, ..self.target }, ..self }
    }

    fn remembering(&self, entries: Vec<EntryPoint>) -> Vec<EntryPoint> {
        entries.into_iter().map(|entry| EntryPoint { kv: self.kv, ..entry }).collect()
    }

    /// How the trace is simplified.
    pub fn simplification(&self) -> Options {
        Options::new(self.rules, &self.target)
    }

    /// A checkpoint with its tensors as the model names them.
    pub fn named(&self, checkpoint: Checkpoint) -> Checkpoint {
        self.model.named(checkpoint)
    }

    /// The trace of all entry points, as it is recorded.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn trace(&self) -> Result<Traced, PlanError> {
        self.record(&self.entry_points())
    }

    /// The trace of these entry points.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn record(&self, entries: &[EntryPoint]) -> Result<Traced, PlanError> {
        Ok(self.model.trace(self.element, entries)?)
    }

    /// A trace of this plan, simplified and expanded, but not written yet: the one of [`trace`](Self::trace), or some
    /// entry points of it.
    ///
    /// # Errors
    /// If the trace is not one that lowers.
    pub fn expand(&self, trace: &Trace) -> Result<Expanded, PlanError> {
        Ok(Expanded::new(trace, self.rules, self.target.clone(), self.weights.clone())?)
    }

    /// All that a trace of this plan becomes on the way there.
    ///
    /// # Errors
    /// If the trace is not one that lowers.
    pub fn stages(&self, trace: &Trace) -> Result<StagedTrace, PlanError> {
        Ok(StagedTrace::new(trace, self.rules, self.target.clone(), self.weights.clone())?)
    }

    /// A trace of this plan, simplified and lowered: the one of [`trace`](Self::trace), or some entry points of it.
    ///
    /// # Errors
    /// If the trace is not one that lowers.
    pub fn lower(&self, trace: &Trace) -> Result<Lowered, PlanError> {
        Ok(self.expand(trace)?.lower(self.model.ignorable())?)
    }
}

/// The type of weights and activations: the one wanted, or f32.
pub(crate) fn computed_in(wanted: Option<ElementType>) -> Result<ElementType, PlanError> {
    match wanted.unwrap_or(ElementType::F32) {
        element @ (ElementType::F32 | ElementType::F16 | ElementType::Bf16) => Ok(element),
        other => Err(PlanError::Element(other)),
    }
}

/// A power of two that holds `tokens`, from `least` on, or `longest` if that is less.
pub(crate) fn rounded_up(tokens: usize, least: usize, longest: usize) -> usize {
    tokens.checked_next_power_of_two().unwrap_or(longest).max(least).min(longest)
}
