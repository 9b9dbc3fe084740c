//! From a recorded network to the module that is compiled and the list of weights that is baked; and what they will hold in
//! memory. Recording comes first and happens once: everything else follows from the trace.

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

/// A network in the form that is compiled, and what its checkpoint may hold.
pub struct Lowered {
    /// The text, the entry points and the parameters.
    pub module: Module,
    /// What it is lowered for.
    pub target: Target,
    ignorable: Vec<Ignorable>,
}

/// A trace in the form that is written: simplified, its weights packed for a target, the rest in primitives and what the
/// target's kernels compute.
pub struct Expanded {
    pub trace: Trace,
    /// Of each weight that the simplified network declares, by its key there: its format, or why it has none.
    pub formats: BTreeMap<String, Result<WeightFormat, DenseReason>>,
    /// What it is expanded for.
    pub target: Target,
    recorded: Vec<Parameter>,
}

/// What a trace becomes on its way to [`Expanded`], and what each simplification did.
pub struct StagedTrace {
    /// Simplified, with its composites, and how.
    pub simplified: (Trace, Report),
    /// In the form that is written, and how what the composites became was simplified.
    pub expanded: (Expanded, Report),
}

impl StagedTrace {
    /// Simplifies and expands a trace for a target.
    ///
    /// # Errors
    /// If the trace is not one that lowers.
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
    /// If the trace is not one that lowers.
    pub fn new(trace: &Trace, rules: Rules, target: Target, weights: Weights) -> Result<Self, LowerError> {
        Ok(StagedTrace::new(trace, rules, target, weights)?.expanded.0)
    }

    /// The program as text. Its checkpoint may hold what the network reads, and what is `ignorable`.
    ///
    /// # Errors
    /// If the trace is not one that lowers.
    pub fn lower(&self, mut ignorable: Vec<Ignorable>) -> Result<Lowered, LowerError> {
        let module = lower::lower(&self.trace, &self.target)?;
        ignorable.extend(bake::unread(&self.recorded, &module.parameters));
        Ok(Lowered { module, target: self.target.clone(), ignorable })
    }
}

impl Lowered {
    /// Simplifies and lowers a trace for a target. Its checkpoint may hold what the trace reads, and what is `ignorable`.
    ///
    /// # Errors
    /// If the trace is not one that lowers.
    pub fn new(
        trace: &Trace,
        rules: Rules,
        target: Target,
        weights: Weights,
        ignorable: Vec<Ignorable>,
    ) -> Result<Self, LowerError> {
        Expanded::new(trace, rules, target, weights)?.lower(ignorable)
    }

    /// Compares a checkpoint with what the module reads; `recorded` is the trace that was lowered, and says where the
    /// network declares it.
    ///
    /// # Errors
    /// Everything in which they differ.
    pub fn check(&self, checkpoint: &Checkpoint, recorded: &Trace) -> Result<Checked, BakeError> {
        let checked = bake::check(checkpoint, &self.module.parameters, &self.ignorable);
        checked.map_err(|refused| refused.declared_in(recorded))
    }

    /// Writes the archive that the module reads.
    ///
    /// # Errors
    /// See [`bake`](bake::bake).
    pub fn bake(
        &self,
        checkpoint: &Checkpoint,
        out: &Path,
        options: BakeOptions<'_>,
    ) -> Result<Baked, BakeError> {
        bake::bake(checkpoint, &self.module.parameters, &self.ignorable, out, options)
    }
}

/// The trace in primitives, simplified before and after its composites are expanded: some rules want to see a composite
/// whole, others what it is made of.
///
/// # Errors
/// If the trace was not verified.
pub fn primitives(trace: &Trace, options: &Options) -> Result<(Trace, [Report; 2]), LowerError> {
    let (trace, composites) = simplify(trace, options);
    let (trace, primitives) = simplify(&lower::expand(&trace)?, options);
    Ok((trace, [composites, primitives]))
}
