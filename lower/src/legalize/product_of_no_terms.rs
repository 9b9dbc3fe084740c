use ops::ops::{Constant, DotGeneral};
use ops::{InferError, Literal, Op};
use targets::{Backend, DeviceKind};
use trace::{Builder, Function, NodeId};

use super::{FaultExample, Legalization};

pub(super) const LEGALIZATION: Legalization = Legalization {
    name: "product of no terms",
    backends: &[Backend::Iree3_13, Backend::Interpreter],
    devices: &DeviceKind::ALL,
    fault: "a contraction over an empty axis makes the compiler and the interpreter divide by zero and \
        crash (docs/upstream/no_terms.mlir)",
    examples: &[FaultExample {
        operations: &[(
            "dot_general left_batch=[] right_batch=[] left_contract=[1] right_contract=[1] element=f32",
            &[0, 1],
        )],
        operands: &["f32[2,0]", "f32[3,0]"],
    }],
    operation: "dot_general",
    shows,
    rewrite,
};

fn shows(function: &Function, op: &Op, operands: &[NodeId]) -> bool {
    let Op::DotGeneral(DotGeneral { left_contract, .. }) = op else { unreachable!("a product") };
    left_contract.iter().any(|&axis| function.node(operands[0]).ty().shape[axis] == 0)
}

fn rewrite(b: &mut Builder<'_>, op: &Op, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let types: Vec<_> = operands.iter().map(|&operand| b.ty(operand)).collect();
    let ty = op.infer(&types)?;
    b.op(Constant { value: Literal::splat(ty, 0.0) }, &[])
}
