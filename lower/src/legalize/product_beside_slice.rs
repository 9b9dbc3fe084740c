use ops::ops::{BinaryKind, OptimizationBarrier};
use ops::{InferError, Op, OpClass};
use targets::{Backend, DeviceKind};
use trace::{Builder, Function, NodeId, NodeKind};

use super::{FaultExample, Legalization, is_computed_with};

pub(super) const LEGALIZATION: Legalization = Legalization {
    name: "product beside slice",
    backends: &[Backend::Iree3_13],
    devices: &[DeviceKind::Cpu],
    fault: "if an operation combines the result of a matmul with a slice of another tensor, and a matmul reads the results, \
        the compiler needs minutes or rejects its own code (docs/upstream/product_beside_slice.mlir)",
    examples: &[FaultExample {
        // Sums of whole numbers are exact.
        operations: &[
            ("unary kind=floor", &[0]),
            ("unary kind=floor", &[1]),
            ("narrow axis=1 start=66 length=66", &[2]),
            ("unary kind=floor", &[3]),
            (PRODUCT, &[4, 5]),
            ("unary kind=floor", &[6]),
            ("binary kind=multiply", &[8, 9]),
            (PRODUCT, &[10, 7]),
        ],
        operands: &["f32[48,24]", "f32[66,24]", "f32[48,132]", "f32[30,66]"],
    }],
    operation: "binary",
    shows,
    rewrite,
};

const PRODUCT: &str =
    "dot_general left_batch=[] right_batch=[] left_contract=[1] right_contract=[1] element=f32";

/// For each operand of an operation, whether the operand can be a slice in the compiler's loop, and
/// the other operand is computed with the whole result of a matmul.
fn at_fault(function: &Function, op: &Op, operands: &[NodeId]) -> [bool; 2] {
    let is_sliced = |value| is_computed_with(function, value, |op| matches!(op, Op::Narrow(_)));
    let is_product = |value| is_computed_with(function, value, |op| matches!(op, Op::DotGeneral(_)));
    let is_factor = matches!(op, Op::Binary(binary) if binary.kind == BinaryKind::Multiply);
    let [first, second] = [operands[0], operands[1]];
    [(first, second), (second, first)].map(|(operand, other)| {
        can_be_slice(function, operand, is_factor) && !is_sliced(other) && is_product(other)
    })
}

/// Whether a value is computed element by element from a slice or from an argument of the function.
/// The caller can pass a slice, and the compiler inlines the function. Only a factor can be an
/// argument: most sums with an argument add to the residual stream, which is no slice.
fn can_be_slice(function: &Function, value: NodeId, is_factor: bool) -> bool {
    let node = function.node(value);
    let NodeKind::Op(op) = &node.kind else {
        return is_factor && matches!(node.kind, NodeKind::Input { .. }) && node.ty().rank() > 1;
    };
    match (op.class(), &function.operands(value)[..]) {
        (OpClass::Elementwise | OpClass::Movement, &[operand]) => {
            let is_whole = function.node(operand).ty().count() == node.ty().count();
            matches!(op, Op::Narrow(_)) || is_whole && can_be_slice(function, operand, is_factor)
        }
        _ => false,
    }
}

fn shows(function: &Function, op: &Op, operands: &[NodeId]) -> bool {
    at_fault(function, op, operands).contains(&true)
}

/// Writes the slice to memory before the operation reads it.
fn rewrite(b: &mut Builder<'_>, op: &Op, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let faults = at_fault(b.function, op, operands);
    let mut alone = operands.to_vec();
    for (operand, is_at_fault) in alone.iter_mut().zip(faults) {
        if is_at_fault {
            *operand = b.op(OptimizationBarrier {}, &[*operand])?;
        }
    }
    b.op(op.clone(), &alone)
}
