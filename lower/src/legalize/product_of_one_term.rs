use ops::ops::DotGeneral;
use ops::{InferError, Op};
use targets::Backend;
use trace::{Builder, Function, NodeId};

use super::{FaultExample, Legalization};

pub(super) const LEGALIZATION: Legalization = Legalization {
    name: "product of one term",
    backend: Backend::Iree3_13,
    fault: "two products that sum one term each, in a type wider than their operands', do not compile where they share \
            a reshaped operand: they become multiplications that are ill-typed",
    examples: &[FaultExample {
        operations: &[
            ("reshape shape=[1,1]", &[0]),
            (PRODUCT, &[3, 1]),
            (PRODUCT, &[3, 2]),
            ("binary kind=add", &[4, 5]),
        ],
        operands: &["bf16[1] 3", "bf16[1,1] 5", "bf16[1,1] 7"],
    }],
    operation: "dot_general",
    shows,
    rewrite,
};

const PRODUCT: &str =
    "dot_general left_batch=[] right_batch=[] left_contract=[1] right_contract=[1] element=f32";

fn shows(function: &Function, op: &Op, operands: &[NodeId]) -> bool {
    let Op::DotGeneral(DotGeneral { left_contract, element, .. }) = op else { unreachable!("a product") };
    let left = function.node(operands[0]).ty();
    left.element != *element && left_contract.iter().all(|&axis| left.shape[axis] == 1)
}

/// Of operands that are as wide already.
fn rewrite(b: &mut Builder<'_>, op: &Op, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let Op::DotGeneral(DotGeneral { element, .. }) = op else { unreachable!("it shows") };
    let wide = operands.iter().map(|&x| b.convert(x, *element)).collect::<Result<Vec<_>, _>>()?;
    b.op(op.clone(), &wide)
}
