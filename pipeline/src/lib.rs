//! Turns a recorded network into the module to compile and the list of weights to bake, and computes their
//! memory. All results follow from the trace, which is recorded once.

pub mod footprint;
pub mod partition;

use std::collections::BTreeMap;
use std::path::Path;

use bake::{BakeError, BakeOptions, Baked, Checked, Ignorable};
use irpa::Checkpoint;
use lower::{DenseReason, Implementations, LowerError, Module, Weights};
use ops::WeightFormat;
use simplify::{Options, Report, Rules, simplify};
use targets::Target;
use trace::{Parameter, Trace};

pub use footprint::{Footprint, Memory};
pub use partition::DevicePartition;

/// A network that is lowered for the compiler, and the tensors that its checkpoint may contain.
pub struct Lowered {
    /// The text of the module, its entry points and its parameters.
    pub module: Module,
    /// The target of the lowering.
    pub target: Target,
    ignorable: Vec<Ignorable>,
}

/// A trace before it is written as text: simplified, with weights packed for a target, and expanded to
/// primitives and operations of kernels.
pub struct Expanded {
    pub trace: Trace,
    /// For each weight of the simplified network, by its key, the weight's format, or the reason why the
    /// weight is stored unquantized.
    pub formats: BTreeMap<String, Result<WeightFormat, DenseReason>>,
    /// The target of the expansion.
    pub target: Target,
    recorded: Vec<Parameter>,
}

/// The stages of a trace on the way to [`Expanded`], with a report for each simplification.
pub struct StagedTrace {
    /// The simplified trace with composite operations, and the report on the simplification.
    pub simplified: (Trace, Report),
    /// The expanded trace, and the report on simplifying its primitives.
    pub expanded: (Expanded, Report),
}

impl StagedTrace {
    /// Simplifies and expands a trace for a target, and returns all stages.
    ///
    /// # Errors
    /// Returns an error if the trace cannot be lowered.
    pub fn new(trace: &Trace, rules: Rules, target: Target, weights: Weights) -> Result<Self, LowerError> {
        let weights = weights.resolved(trace)?;
        let options = Options { formats: weights.quantize.formats(), ..Options::new(rules, &target) };
        let recorded = trace.parameters()?;
        let simplified = simplify(trace, &options);
        let implementations = Implementations::of(&simplified.0, &weights, &target)?;
        let formats = implementations.formats();
        let (trace, primitives) = simplify(&implementations.expand()?, &options);
        let expanded = Expanded { trace, formats, target, recorded };
        Ok(Self { simplified, expanded: (expanded, primitives) })
    }
}

impl Expanded {
    /// Simplifies and expands a trace for a target.
    ///
    /// # Errors
    /// Returns an error if the trace cannot be lowered.
    pub fn new(trace: &Trace, rules: Rules, target: Target, weights: Weights) -> Result<Self, LowerError> {
        Ok(StagedTrace::new(trace, rules, target, weights)?.expanded.0)
    }

    /// Writes the program as StableHLO text. The program's checkpoint may contain the tensors that the
    /// network reads, and the tensors in `ignorable`.
    ///
    /// # Errors
    /// Returns an error if the trace cannot be lowered.
    pub fn lower(&self, mut ignorable: Vec<Ignorable>) -> Result<Lowered, LowerError> {
        let module = lower::lower(&self.trace, &self.target)?;
        ignorable.extend(bake::unread(&self.recorded, &module.parameters));
        Ok(Lowered { module, target: self.target.clone(), ignorable })
    }
}

impl Lowered {
    /// Simplifies and lowers a trace for a target. The trace's checkpoint may contain the tensors that the
    /// trace reads, and the tensors in `ignorable`.
    ///
    /// # Errors
    /// Returns an error if the trace cannot be lowered.
    pub fn new(
        trace: &Trace,
        rules: Rules,
        target: Target,
        weights: Weights,
        ignorable: Vec<Ignorable>,
    ) -> Result<Self, LowerError> {
        Expanded::new(trace, rules, target, weights)?.lower(ignorable)
    }

    /// Compares a checkpoint with the module's parameters. `recorded` is the trace before lowering, and
    /// provides the places of declarations.
    ///
    /// # Errors
    /// Returns an error if the checkpoint and the parameters differ. The error lists all differences.
    pub fn check(&self, checkpoint: &Checkpoint, recorded: &Trace) -> Result<Checked, BakeError> {
        let checked = bake::check(checkpoint, &self.module.parameters, &self.ignorable);
        checked.map_err(|refused| refused.declared_in(recorded))
    }

    /// Writes the archive of the module's parameters.
    ///
    /// # Errors
    /// Returns the same errors as [`bake`](bake::bake).
    pub fn bake(
        &self,
        checkpoint: &Checkpoint,
        out: &Path,
        options: BakeOptions<'_>,
    ) -> Result<Baked, BakeError> {
        bake::bake(checkpoint, &self.module.parameters, &self.ignorable, out, options)
    }
}

/// The trace as primitive operations. The trace is simplified before and after its composites are expanded,
/// because some rules match composites and other rules match primitives.
///
/// # Errors
/// Returns an error if the trace was not verified.
pub fn primitives(trace: &Trace, options: &Options) -> Result<(Trace, [Report; 2]), LowerError> {
    let (trace, composites) = simplify(trace, options);
    let (trace, primitives) = simplify(&lower::expand(&trace)?, options);
    Ok((trace, [composites, primitives]))
}
