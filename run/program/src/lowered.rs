//! Turns a recorded network into the text of a module for the compiler, and into the list of
//! weights for the archive.

use std::collections::BTreeMap;
use std::path::Path;

use bake::{BakeError, BakeOptions, Baked, Checked};
use irpa::Checkpoint;
use lower::{DenseReason, Implementations, LowerError, Module, Weights};
use ops::WeightFormat;
use simplify::{Options, Report, Rules, simplify};
use targets::Target;
use trace::{Ignorable, Parameter, Trace};

/// A network that is lowered to a module for the compiler. A [`Lowered`] also lists the tensors
/// that a checkpoint may contain although the module doesn't read these tensors.
pub struct Lowered {
    /// The lowered module, which consists of a text, entry points and parameters.
    pub module: Module,
    /// The target for which the module is lowered.
    pub target: Target,
    ignorable: Vec<Ignorable>,
}

/// A trace from which Tracewright can directly emit the text of a module. The trace is simplified
/// and has packed weights. The trace contains only primitive operations and kernel calls.
pub struct Expanded {
    pub trace: Trace,
    /// Maps the key of each weight in the simplified network to the quantized format of the weight.
    /// If a weight is not quantized, the map contains the reason.
    pub formats: BTreeMap<String, Result<WeightFormat, DenseReason>>,
    /// The target for which Tracewright chose the kernels and the packed weight formats.
    pub target: Target,
    recorded: Vec<Parameter>,
}

/// Contains the intermediate results of [`Expanded::new`], and a report about each simplification
/// of the trace.
pub struct StagedTrace {
    /// Contains the simplified trace, which still contains composite operations, and the report
    /// about the simplification of the trace.
    pub simplified: (Trace, Report),
    /// Contains the trace after the expansion to primitive operations, and the report about the
    /// simplification of these primitive operations.
    pub expanded: (Expanded, Report),
}

impl StagedTrace {
    /// Simplifies a trace for a target, expands composite operations to primitive operations, and
    /// returns the intermediate results.
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
    /// Simplifies a trace for a target, and expands composite operations to primitive operations.
    pub fn new(trace: &Trace, rules: Rules, target: Target, weights: Weights) -> Result<Self, LowerError> {
        Ok(StagedTrace::new(trace, rules, target, weights)?.expanded.0)
    }

    /// Emits the program as StableHLO text. A checkpoint for this program may contain the tensors
    /// that the network reads, and the tensors in `ignorable`.
    pub fn lower(&self, mut ignorable: Vec<Ignorable>) -> Result<Lowered, LowerError> {
        let module = lower::lower(&self.trace, &self.target)?;
        ignorable.extend(bake::unread(&self.recorded, &module.parameters));
        Ok(Lowered { module, target: self.target.clone(), ignorable })
    }
}

impl Lowered {
    /// Simplifies a trace, and lowers the trace to a module for the given target. A checkpoint for
    /// this trace may contain the tensors that the trace reads, and the tensors in `ignorable`.
    pub fn new(
        trace: &Trace,
        rules: Rules,
        target: Target,
        weights: Weights,
        ignorable: Vec<Ignorable>,
    ) -> Result<Self, LowerError> {
        Expanded::new(trace, rules, target, weights)?.lower(ignorable)
    }

    /// Compares a checkpoint with the module's parameters. The argument `recorded` is the trace before
    /// lowering. Error messages contain the source lines that declare the tensors of the recorded trace.
    ///
    /// # Errors
    /// Returns an error if the checkpoint and the parameters differ. The error lists all
    /// differences between the checkpoint and the parameters.
    pub fn check(&self, checkpoint: &Checkpoint, recorded: &Trace) -> Result<Checked, BakeError> {
        let checked = bake::check(checkpoint, &self.module.parameters, &self.ignorable);
        checked.map_err(|refused| refused.declared_in(recorded))
    }

    /// Writes an archive with the parameters of the module.
    pub fn bake(
        &self,
        checkpoint: &Checkpoint,
        out: &Path,
        options: BakeOptions<'_>,
    ) -> Result<Baked, BakeError> {
        bake::bake(checkpoint, &self.module.parameters, &self.ignorable, out, options)
    }
}

/// Expands a trace to primitive operations. The function simplifies the trace twice, because some
/// rules match composite operations, and other rules match primitive operations.
pub fn primitives(trace: &Trace, options: &Options) -> Result<(Trace, [Report; 2]), LowerError> {
    let (trace, composites) = simplify(trace, options);
    let (trace, primitives) = simplify(&lower::expand(&trace)?, options);
    Ok((trace, [composites, primitives]))
}
