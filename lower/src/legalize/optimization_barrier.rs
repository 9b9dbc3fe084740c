use ops::ops::{BroadcastInDim, Constant, OptimizationBarrier, Select};
use ops::{ElementType, InferError, Literal, Op, TensorType};
use targets::Backend;
use trace::{Builder, NodeId};

use super::{Example, Legalization};

pub(super) const LEGALIZATION: Legalization = Legalization {
    name: "update behind a barrier",
    backend: Backend::Iree3_13,
    fault: "an update of what stands behind an `optimization_barrier` is written over what stands before it: a value \
            that is read again, a constant, a weight",
    examples: &[Example {
        operations: &[
            ("optimization_barrier", &[0]),
            ("dynamic_update_slice axis=0", &[3, 1, 2]),
            ("binary kind=add", &[0, 4]),
        ],
        operands: &["f32[3] 1,2,3", "f32[2] 8,9", "i32[] 1"],
    }],
    operation: "optimization_barrier",
    shows: |_, _, _| true,
    rewrite,
};

fn rewrite(b: &mut Builder<'_>, _: &Op, operands: &[NodeId]) -> Result<NodeId, InferError> {
    behind(b, operands[0])
}

/// What stands behind a barrier. It is chosen, for a reason that the compiler cannot see, and so has memory of its own.
pub(super) fn behind(b: &mut Builder<'_>, x: NodeId) -> Result<NodeId, InferError> {
    let hidden = b.op(OptimizationBarrier {}, &[x])?;
    let value = Literal::splat(TensorType::new(ElementType::I1, []), 1.0);
    let always = b.op(Constant { value }, &[])?;
    let always = b.op(OptimizationBarrier {}, &[always])?;
    let shape = b.ty(hidden).shape.clone();
    let always = b.op(BroadcastInDim { shape, axes: vec![] }, &[always])?;
    let never = b.splat(hidden, 0.0)?;
    b.op(Select {}, &[always, hidden, never])
}
