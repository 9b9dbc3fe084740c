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
use trace::{Ignorable, Parameter, Role, Signature, Trace};

/// With the tensors that a checkpoint may contain although the module doesn't read them.
pub struct Lowered {
    /// The lowered module, which consists of a text, entry points and parameters.
    pub module: Module,
    pub target: Target,
    ignorable: Vec<Ignorable>,
}

/// Simplified, with packed weights, only primitive operations and kernel calls: ready to emit.
pub struct Expanded {
    pub trace: Trace,
    /// By key in the simplified network; or why the weight is not quantized.
    pub formats: BTreeMap<String, Result<WeightFormat, DenseReason>>,
    /// The target for which Tracewright chose the kernels and the packed weight formats.
    pub target: Target,
    recorded: Vec<Parameter>,
}

/// The intermediate results of [`Expanded::new`].
pub struct StagedTrace {
    /// Still with composite operations.
    pub simplified: (Trace, Report),
    /// Primitive operations, simplified again.
    pub expanded: (Expanded, Report),
}

impl StagedTrace {
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
    /// Simplifies, and expands composite operations.
    pub fn new(trace: &Trace, rules: Rules, target: Target, weights: Weights) -> Result<Self, LowerError> {
        Ok(StagedTrace::new(trace, rules, target, weights)?.expanded.0)
    }

    /// A checkpoint may contain the tensors that the network reads, and those in `ignorable`.
    pub fn lower(&self, mut ignorable: Vec<Ignorable>) -> Result<Lowered, LowerError> {
        let module = lower::lower(&self.trace, &self.target)?;
        ignorable.extend(bake::unread(&self.recorded, &module.parameters));
        Ok(Lowered { module, target: self.target.clone(), ignorable })
    }

    /// A module for each entry point, or `None` if a program cannot start with the first one alone. The first
    /// one computes one token for each sequence, and the others compute the same bits in fewer calls.
    pub fn apart(&self) -> Result<Option<Vec<Module>>, LowerError> {
        let signatures = self.trace.entries.iter().map(|&id| self.trace.function(id).signature());
        let sizes = signatures.map(|signature| Some((tokens_of(&signature)?, signature.name)));
        let Some(mut sizes) = sizes.collect::<Option<Vec<_>>>() else { return Ok(None) };
        // Most answers use the steps with several tokens soon, and those for a part of the batch later.
        sizes.sort_by_key(|&((batch, tokens), _)| (tokens, std::cmp::Reverse(batch)));
        let starts = sizes.first().is_some_and(|((_, tokens), _)| *tokens == 1);
        if !starts || sizes.len() == 1 || !lower::is_invariant(&self.trace, &self.target) {
            return Ok(None);
        }
        sizes[1..].sort_by_key(|&((_, tokens), _)| (tokens == 1, tokens));
        let module = |(_, name): ((usize, usize), String)| {
            lower::lower(&self.trace.with_entries(&[&name]), &self.target)
        };
        sizes.into_iter().map(module).collect::<Result<_, _>>().map(Some)
    }
}

/// The numbers of sequences and tokens that an entry point computes. `None` if it takes no tokens, or is for
/// an encoder or for drafts.
fn tokens_of(signature: &Signature) -> Option<(usize, usize)> {
    let of_role = |role: Role| signature.arguments.iter().find(move |argument| argument.role == role);
    let chooses = signature.results.iter().any(|result| result.role == Role::Logits);
    let shape = &of_role(Role::Tokens).filter(|_| chooses && of_role(Role::Features).is_none())?.ty.shape;
    Some((*shape.first()?, *shape.get(1)?))
}

impl Lowered {
    /// A checkpoint may contain the tensors that the trace reads, and those in `ignorable`.
    pub fn new(
        trace: &Trace,
        rules: Rules,
        target: Target,
        weights: Weights,
        ignorable: Vec<Ignorable>,
    ) -> Result<Self, LowerError> {
        Expanded::new(trace, rules, target, weights)?.lower(ignorable)
    }

    /// The error lists all differences, with the lines that declare the tensors in `recorded`, the trace
    /// before lowering.
    pub fn check(&self, checkpoint: &Checkpoint, recorded: &Trace) -> Result<Checked, BakeError> {
        let checked = bake::check(checkpoint, &self.module.parameters, &self.ignorable);
        checked.map_err(|refused| refused.declared_in(recorded))
    }

    pub fn bake(
        &self,
        checkpoint: &Checkpoint,
        out: &Path,
        options: BakeOptions<'_>,
    ) -> Result<Baked, BakeError> {
        bake::bake(checkpoint, &self.module.parameters, &self.ignorable, out, options)
    }
}

/// Simplifies twice, because some rules match composite operations, and others primitive ones.
pub fn primitives(trace: &Trace, options: &Options) -> Result<(Trace, [Report; 2]), LowerError> {
    let (trace, composites) = simplify(trace, options);
    let (trace, primitives) = simplify(&lower::expand(&trace)?, options);
    Ok((trace, [composites, primitives]))
}
