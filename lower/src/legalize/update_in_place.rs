use ops::ops::{BroadcastInDim, Constant, OptimizationBarrier, Select};
use ops::{ElementType, InferError, Literal, Op, TensorType};
use targets::{Backend, DeviceKind};
use trace::{Builder, Function, NodeId, NodeKind};

use super::{FaultExample, Legalization};

pub(super) const LEGALIZATION: Legalization = Legalization {
    name: "update in place",
    backends: &[Backend::Iree3_13],
    devices: &DeviceKind::ALL,
    fault: "an update overwrites a value that is still needed: the operand of an `optimization_barrier`, \
        even a weight, or a gathered value that is read and returned",
    examples: &[
        FaultExample {
            operations: &[
                ("optimization_barrier", &[0]),
                ("dynamic_update_slice axis=0", &[3, 1, 2]),
                ("binary kind=add", &[0, 4]),
            ],
            operands: &["f32[3] 1,2,3", "f32[2] 8,9", "i32[] 1"],
        },
        FaultExample {
            operations: &[
                ("gather", &[0, 1]),
                // Two negations return the same value.
                ("unary kind=negate", &[4]),
                ("unary kind=negate", &[5]),
                ("unary kind=abs", &[5]),
                ("dynamic_update_slice axis=0", &[4, 2, 3]),
            ],
            operands: &["f32[2,3] 1,2,3,4,5,6", "i32[2] 1,0", "f32[1,3] 7,8,9", "i32[] 0"],
        },
    ],
    operation: "dynamic_update_slice",
    shows,
    rewrite,
};

/// The legalization matches updates of values that the same function computes. The legalization
/// does not match updates of arguments, because the function cannot know which other nodes read the
/// argument. Therefore the program can still update the KV cache of the caller in place.
fn shows(function: &Function, op: &Op, operands: &[NodeId]) -> bool {
    let updated = operands[0];
    match &function.node(updated).kind {
        NodeKind::Op(maker) if maker.name() == op.name() => {
            shows(function, maker, &function.operands(updated))
        }
        kind => matches!(kind, NodeKind::Op(_)),
    }
}

/// Updates a copy. The compiler cannot remove the copy of the value, because the compiler cannot
/// evaluate the condition that selects the copy.
fn rewrite(b: &mut Builder<'_>, op: &Op, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let updated = operands[0];
    let value = Literal::splat(TensorType::new(ElementType::I1, []), 1.0);
    let always = b.op(Constant { value }, &[])?;
    let always = b.op(OptimizationBarrier {}, &[always])?;
    let always = b.op(BroadcastInDim { shape: b.ty(updated).shape.clone(), axes: vec![] }, &[always])?;
    let never = b.splat(updated, 0.0)?;
    let copy = b.op(Select {}, &[always, updated, never])?;
    b.op(op.clone(), &[&[copy], &operands[1..]].concat())
}
