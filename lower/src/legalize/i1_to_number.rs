use ops::ops::{Constant, Convert, Select};
use ops::{ElementType, InferError, Literal, Op};
use targets::{Backend, DeviceKind};
use trace::{Builder, Function, NodeId};

use super::{FaultExample, Legalization};

pub(super) const LEGALIZATION: Legalization = Legalization {
    name: "i1 to number",
    backends: &[Backend::Iree3_13],
    devices: &DeviceKind::ALL,
    fault: "a matmul of values that were converted from i1 does not compile with data tiling: the compiler \
        tries to pack the i1 values",
    examples: &[FaultExample {
        operations: &[
            ("convert to=f32", &[0]),
            (
                "dot_general left_batch=[] right_batch=[] left_contract=[1] right_contract=[1] element=f32",
                &[2, 1],
            ),
        ],
        operands: &["i1[2,2] 1,0,1,1", "f32[2,2] 1,2,3,4"],
    }],
    operation: "convert",
    shows,
    rewrite,
};

fn shows(function: &Function, op: &Op, operands: &[NodeId]) -> bool {
    let Op::Convert(Convert { to }) = op else { unreachable!("a conversion") };
    function.node(operands[0]).ty().element == ElementType::I1 && *to != ElementType::I1
}

/// Replaces the conversion of a boolean by a selection between the numbers one and zero.
fn rewrite(b: &mut Builder<'_>, op: &Op, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let Op::Convert(Convert { to }) = op else { unreachable!("it shows") };
    let ty = b.ty(operands[0]).with_element(*to);
    let [one, zero] =
        [1.0, 0.0].map(|number| b.op(Constant { value: Literal::splat(ty.clone(), number) }, &[]));
    b.op(Select {}, &[operands[0], one?, zero?])
}
