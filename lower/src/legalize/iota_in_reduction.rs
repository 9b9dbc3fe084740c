use ops::ops::OptimizationBarrier;
use ops::{ElementType, InferError, Op};
use targets::{Backend, DeviceKind};
use trace::{Builder, Function, NodeId};

use super::{FaultExample, Legalization};

pub(super) const LEGALIZATION: Legalization = Legalization {
    name: "iota in a reduction",
    backends: &[Backend::Iree3_13],
    devices: &[DeviceKind::Metal, DeviceKind::Vulkan],
    fault: "a reduction over an iota keeps indices in workgroup memory in a type of no width, which SPIR-V \
        lacks (docs/upstream/iota_in_reduction.mlir)",
    examples: &[FaultExample {
        operations: &[
            ("iota ty=i32[1024] axis=0", &[]),
            ("binary kind=add", &[1, 0]),
            ("reduce kind=minimum axes=[0]", &[2]),
        ],
        operands: &["i32[1024]"],
    }],
    operation: "reduce",
    shows,
    rewrite,
};

/// Matches reductions of integers, such as the search for the index of the largest element. The
/// compiler computes the operand of such a reduction inside the loop of the reduction.
fn shows(function: &Function, op: &Op, operands: &[NodeId]) -> bool {
    matches!(op, Op::Reduce(_)) && function.node(operands[0]).ty().element == ElementType::I32
}

/// Rewrites the reduction so that the reduction reads its operand from memory.
fn rewrite(b: &mut Builder<'_>, op: &Op, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let alone = b.op(OptimizationBarrier {}, &[operands[0]])?;
    b.op(op.clone(), &[alone])
}
