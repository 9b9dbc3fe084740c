//! Every composite becomes primitives.

use kernels::FusedOp;
use ops::{InferError, Op};
use targets::Target;
use trace::{Builder, Function, NodeId, NodeKind, Trace};

use crate::rewrite::rewrite;
use crate::store::{Weights, store};
use crate::{LowerError, append, bounded_sdpa, dequantize, erf, grouped, linear, rms_norm, rope, sdpa};

/// The same program in primitives. Nodes that no result needs are left out.
///
/// # Errors
/// If a node's operands do not fit its operation: the trace was not verified.
pub fn expand(trace: &Trace) -> Result<Trace, LowerError> {
    rewrite(trace, convert)
}

/// The same program in primitives and what the target's kernels compute, its weights stored for that.
///
/// # Errors
/// See [`store`] and [`expand`].
pub fn expand_for(trace: &Trace, weights: &Weights, target: &Target) -> Result<Trace, LowerError> {
    let kernels = weights.kernels(target);
    // As primitives through iree-compile 3.13 the numbers are those of kernels, but where a number lies between two integers.
    if kernels.is_empty() && has(trace, |op| matches!(op, Op::Dequantize(_))) {
        return Err(LowerError::IntegersWithoutKernels);
    }
    // A ring behind `bounded_sdpa` reads both numbers of the host: that does not compile (docs/upstream/two_numbers.mlir).
    let rings = has(trace, |op| matches!(op, Op::Append(append) if append.ring));
    rewrite(&store(trace, weights, target)?, |b, op, operands| {
        let types: Vec<_> = operands.iter().map(|&operand| b.ty(operand)).collect();
        match op {
            _ if kernels.can_do(&FusedOp::alone(op, types.clone())) => b.op(op.clone(), operands),
            Op::Append(append) => match append::sliced(append, &types, target) {
                Some(sliced) => b.op(sliced, operands),
                None => convert(b, op, operands),
            },
            Op::Sdpa(sdpa) if !rings => match bounded_sdpa::of(sdpa, &types, target) {
                Some(bounded) => b.op(bounded, operands),
                None => convert(b, op, operands),
            },
            _ => convert(b, op, operands),
        }
    })
}

/// Whether a trace has such an operation.
fn has(trace: &Trace, is: impl Fn(&Op) -> bool) -> bool {
    let ops = |function: &Function| {
        function.ids().any(|id| matches!(&function.node(id).kind, NodeKind::Op(op) if is(op)))
    };
    trace.functions.iter().any(ops)
}

/// One operation in primitives. Every composite has a converter: the match is over all of the list.
fn convert(b: &mut Builder<'_>, op: &Op, operands: &[NodeId]) -> Result<NodeId, InferError> {
    match op {
        Op::Append(op) => append::convert(b, op, operands),
        Op::BoundedSdpa(op) => sdpa::convert(b, &op.unbounded(), operands),
        Op::Dequantize(op) => dequantize::convert(b, op, operands),
        Op::Erf(op) => erf::convert(b, op, operands),
        Op::GroupedLinear(op) => grouped::linear(b, op, operands),
        Op::GroupedRows(op) => grouped::rows(b, op, operands),
        Op::Linear(op) => linear::convert(b, op, operands),
        Op::RmsNorm(op) => rms_norm::convert(b, op, operands),
        Op::Rope(op) => rope::convert(b, op, operands),
        Op::Sdpa(op) => sdpa::convert(b, op, operands),
        Op::SlicedAppend(op) => append::convert(b, &op.append(), operands),
        Op::Constant(_)
        | Op::Iota(_)
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select(_)
        | Op::Convert(_)
        | Op::ReducePrecision(_)
        | Op::OptimizationBarrier(_)
        | Op::Reshape(_)
        | Op::Permute(_)
        | Op::Narrow(_)
        | Op::BroadcastInDim(_)
        | Op::Concatenate(_)
        | Op::Gather(_)
        | Op::DynamicSlice(_)
        | Op::DynamicUpdateSlice(_)
        | Op::DotGeneral(_)
        | Op::Reduce(_)
        | Op::Pack(_)
        | Op::Quantize(_)
        | Op::PackedExperts(_)
        | Op::PackedLinear(_)
        | Op::PackedRows(_) => b.op(op.clone(), operands),
    }
}
