use ops::ops::{DotGeneral, OptimizationBarrier};
use ops::{ElementType, InferError, Op};
use targets::{Backend, DeviceKind};
use trace::{Builder, Function, NodeId};

use super::{FaultExample, Legalization, is_computed_with};

pub(super) const LEGALIZATION: Legalization = Legalization {
    name: "odd row",
    backends: &[Backend::Iree3_13],
    devices: &[DeviceKind::Cpu],
    fault: "with bf16 instructions, a matmul of one row with an odd number of features does not compile if the row is \
        computed with a reduction (docs/upstream/odd_row.mlir)",
    examples: &[FaultExample {
        // Sums of whole numbers are exact.
        operations: &[
            ("unary kind=floor", &[0]),
            ("reduce kind=maximum axes=[1]", &[2]),
            ("broadcast_in_dim shape=[1,61] axes=[0]", &[3]),
            ("binary kind=subtract", &[2, 4]),
            ("convert to=bf16", &[5]),
            (
                "dot_general left_batch=[] right_batch=[] left_contract=[1] right_contract=[1] element=f32",
                &[6, 1],
            ),
        ],
        operands: &["f32[1,61]", "bf16[69,61]"],
    }],
    operation: "dot_general",
    shows,
    rewrite,
};

fn shows(function: &Function, op: &Op, operands: &[NodeId]) -> bool {
    let Op::DotGeneral(DotGeneral { left_batch, left_contract, .. }) = op else { unreachable!("a product") };
    let ty = function.node(operands[0]).ty();
    let is_free = |axis: &usize| !left_batch.contains(axis) && !left_contract.contains(axis);
    let rows: usize = (0..ty.rank()).filter(is_free).map(|axis| ty.shape[axis]).product();
    let features: usize = left_contract.iter().map(|&axis| ty.shape[axis]).product();
    ty.element == ElementType::Bf16
        && rows == 1
        && features % 2 == 1
        && is_computed_with(function, operands[0], |op| matches!(op, Op::Reduce(_)))
}

/// Writes the row to memory before the matmul reads it.
fn rewrite(b: &mut Builder<'_>, op: &Op, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let row = b.op(OptimizationBarrier {}, &operands[..1])?;
    b.op(op.clone(), &[row, operands[1]])
}
