use ops::ops::{Compare, Convert, Direction};
use ops::{ElementType, InferError, Op};
use targets::{Backend, DeviceKind};
use trace::{Builder, Function, NodeId};

use super::{FaultExample, Legalization};

pub(super) const LEGALIZATION: Legalization = Legalization {
    name: "number to i1",
    backends: &[Backend::Iree3_13],
    devices: &DeviceKind::ALL,
    fault: "the conversion of a number of the host to i1 does not compile",
    examples: &[FaultExample { operations: &[("convert to=i1", &[0])], operands: &["i32[] 4"] }],
    operation: "convert",
    shows,
    rewrite,
};

fn shows(function: &Function, op: &Op, operands: &[NodeId]) -> bool {
    matches!(op, Op::Convert(Convert { to: ElementType::I1 }))
        && function.node(operands[0]).ty().element != ElementType::I1
}

/// Replaces the conversion of a number to a boolean by a comparison with zero, which is StableHLO's
/// definition of the conversion.
fn rewrite(b: &mut Builder<'_>, _: &Op, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let x = operands[0];
    let zero = b.splat(x, 0.0)?;
    b.op(Compare { direction: Direction::Ne }, &[x, zero])
}
