use ops::ops::{DotGeneral, OptimizationBarrier};
use ops::{InferError, Op};
use targets::{Backend, DeviceKind};
use trace::{Builder, Function, NodeId};

use super::{FaultExample, Legalization};

pub(super) const LEGALIZATION: Legalization = Legalization {
    name: "product of one term",
    backends: &[Backend::Iree3_13],
    devices: &DeviceKind::ALL,
    fault: "a contraction over an axis of extent 1, in a wider type than its operands, does not compile if \
        another contraction shares a reshaped operand: the compiler makes an ill-typed multiplication \
        (docs/upstream/one_term.mlir)",
    examples: &[
        FaultExample {
            operations: &[
                ("reshape shape=[1,1]", &[0]),
                (PRODUCT, &[3, 1]),
                (PRODUCT, &[3, 2]),
                ("binary kind=add", &[4, 5]),
            ],
            operands: &["bf16[1] 3", "bf16[1,1] 5", "bf16[1,1] 7"],
        },
        FaultExample {
            operations: &[("reshape shape=[3,3,2,1]", &[0]), (SCORES, &[2, 2]), (SUMS, &[1, 2])],
            operands: &["bf16[18,1]", "bf16[3,3,2,2]"],
        },
    ],
    operation: "dot_general",
    shows,
    rewrite,
};

/// An example with the attention scores of keys that have only one feature.
const SCORES: &str =
    "dot_general left_batch=[0,1] right_batch=[0,1] left_contract=[3] right_contract=[3] element=f32";
const SUMS: &str =
    "dot_general left_batch=[0,1] right_batch=[0,1] left_contract=[3] right_contract=[2] element=f32";

const PRODUCT: &str =
    "dot_general left_batch=[] right_batch=[] left_contract=[1] right_contract=[1] element=f32";

fn shows(function: &Function, op: &Op, operands: &[NodeId]) -> bool {
    let Op::DotGeneral(DotGeneral { left_contract, element, .. }) = op else { unreachable!("a product") };
    let left = function.node(operands[0]).ty();
    left.element != *element && left_contract.iter().all(|&axis| left.shape[axis] == 1)
}

/// Before the matmul, converts the operands to the element type of the result. The compiler then
/// cannot combine the conversion with other nodes that read the operands of the matmul.
fn rewrite(b: &mut Builder<'_>, op: &Op, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let Op::DotGeneral(DotGeneral { element, .. }) = op else { unreachable!("it shows") };
    let mut widened = |x| {
        let alone = b.op(OptimizationBarrier {}, &[x])?;
        b.convert(alone, *element)
    };
    let wide = operands.iter().map(|&x| widened(x)).collect::<Result<Vec<_>, _>>()?;
    b.op(op.clone(), &wide)
}
