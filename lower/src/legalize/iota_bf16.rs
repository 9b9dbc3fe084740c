use ops::ops::Iota;
use ops::{ElementType, InferError, Op};
use targets::{Backend, DeviceKind};
use trace::{Builder, Function, NodeId};

use super::{FaultExample, Legalization, integer_to_bf16};

pub(super) const LEGALIZATION: Legalization = Legalization {
    name: "iota of bf16",
    backends: &[Backend::Iree3_13],
    devices: &DeviceKind::ALL,
    fault: "an iota of bf16 becomes a conversion of integers, which does not link on processors that have none",
    examples: &[FaultExample { operations: &[("iota ty=bf16[300] axis=0", &[])], operands: &[] }],
    operation: "iota",
    shows,
    rewrite,
};

fn shows(_: &Function, op: &Op, _: &[NodeId]) -> bool {
    matches!(op, Op::Iota(iota) if iota.ty.element == ElementType::Bf16)
}

fn rewrite(b: &mut Builder<'_>, op: &Op, _: &[NodeId]) -> Result<NodeId, InferError> {
    let Op::Iota(Iota { ty, axis }) = op else { unreachable!("it shows") };
    let whole = b.op(Iota { ty: ty.with_element(ElementType::I32), axis: *axis }, &[])?;
    integer_to_bf16::over_f32(b, whole)
}
