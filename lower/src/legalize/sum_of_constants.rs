use ops::ops::{OptimizationBarrier, Reduce, ReduceKind};
use ops::{InferError, Op};
use targets::{Backend, DeviceKind};
use trace::{Builder, Function, NodeId, NodeKind};

use super::{FaultExample, Legalization};

pub(super) const LEGALIZATION: Legalization = Legalization {
    name: "sum of constants",
    backends: &[Backend::Iree3_13],
    devices: &DeviceKind::ALL,
    fault: "the sum of equal numbers that an operation makes of constants becomes one of these numbers",
    examples: &[FaultExample {
        operations: &[
            ("constant value=f32[2,3] splat 3.0", &[]),
            ("unary kind=negate", &[0]),
            ("reduce kind=add axes=[1]", &[1]),
        ],
        operands: &[],
    }],
    operation: "reduce",
    shows,
    rewrite,
};

fn shows(function: &Function, op: &Op, operands: &[NodeId]) -> bool {
    matches!(op, Op::Reduce(Reduce { kind: ReduceKind::Add, .. })) && is_fixed(function, operands[0])
}

/// Computes the sum from a value that the compiler does not recognize as a constant.
fn rewrite(b: &mut Builder<'_>, op: &Op, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let hidden = b.op(OptimizationBarrier {}, operands)?;
    b.op(op.clone(), &[hidden])
}

/// Whether the value of a node depends only on constants.
pub(super) fn is_fixed(function: &Function, id: NodeId) -> bool {
    let mut seen = vec![false; id.index() + 1];
    let mut open = vec![id];
    while let Some(id) = open.pop() {
        if !matches!(function.node(id).kind, NodeKind::Op(_)) {
            return false;
        }
        if !std::mem::replace(&mut seen[id.index()], true) {
            open.extend(function.operands(id));
        }
    }
    true
}
