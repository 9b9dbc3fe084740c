use ops::ops::{DotGeneral, OptimizationBarrier};
use ops::{InferError, Op};
use targets::{Backend, DeviceKind};
use trace::{Builder, Function, NodeId};

use super::{FaultExample, Legalization, is_computed_with};

pub(super) const LEGALIZATION: Legalization = Legalization {
    name: "product of broadcast",
    backends: &[Backend::Iree3_13],
    devices: &[DeviceKind::Cpu],
    fault: "a batched matmul whose operand is computed with a broadcast is wrong: every batch but the first is read at wrong \
        addresses, if the last tile is more than half full (docs/upstream/padded_tile.mlir)",
    examples: &[
        FaultExample {
            operations: &[
                ("broadcast_in_dim shape=[1,2,15,4] axes=[0,1,2]", &[2]),
                ("binary kind=multiply", &[1, 3]),
                (SCORES, &[0, 4]),
            ],
            operands: &["f32[1,2,1,4]", "f32[1,2,15,4]", "f32[1,2,15]"],
        },
        FaultExample {
            operations: &[
                ("broadcast_in_dim shape=[1,2,15,4] axes=[3]", &[2]),
                ("binary kind=add", &[1, 3]),
                (SCORES, &[0, 4]),
            ],
            operands: &["f32[1,2,1,4]", "f32[1,2,15,4]", "f32[4]"],
        },
        FaultExample {
            operations: &[
                ("broadcast_in_dim shape=[1,2,15,4] axes=[0,1,2]", &[2]),
                ("binary kind=multiply", &[1, 3]),
                (SCORES, &[4, 0]),
            ],
            operands: &["f32[1,2,1,4]", "f32[1,2,15,4]", "f32[1,2,15]"],
        },
    ],
    operation: "dot_general",
    shows,
    rewrite,
};

const SCORES: &str =
    "dot_general left_batch=[0,1] right_batch=[0,1] left_contract=[3] right_contract=[3] element=f32";

/// The extents of the tiles in the compiler's code: 16 with AVX-512, 8 with AVX2, 4 with SSE.
const TILES: [usize; 3] = [4, 8, 16];

/// For each operand of a batched matmul, whether the operand triggers the compiler's fault.
fn at_fault(function: &Function, product: &DotGeneral, operands: &[NodeId]) -> [bool; 2] {
    let sides =
        [(&product.left_batch, &product.left_contract), (&product.right_batch, &product.right_contract)];
    std::array::from_fn(|side| {
        let ((batch, contract), operand) = (sides[side], operands[side]);
        let shape = &function.node(operand).ty().shape;
        let batches: usize = batch.iter().map(|&axis| shape[axis]).product();
        let is_free = |axis: &usize| !batch.contains(axis) && !contract.contains(axis);
        let free: usize = (0..shape.len()).filter(is_free).map(|axis| shape[axis]).product();
        batches > 1
            && TILES.iter().any(|tile| free % tile > tile / 2)
            && is_computed_with_a_broadcast(function, operand)
    })
}

/// Whether the compiler computes a value in the same loop as a broadcast of a tensor that has at
/// least one axis.
fn is_computed_with_a_broadcast(function: &Function, value: NodeId) -> bool {
    is_computed_with(
        function,
        value,
        |op| matches!(op, Op::BroadcastInDim(broadcast) if !broadcast.axes.is_empty()),
    )
}

fn shows(function: &Function, op: &Op, operands: &[NodeId]) -> bool {
    let Op::DotGeneral(product) = op else { unreachable!("a product") };
    at_fault(function, product, operands).contains(&true)
}

/// Rewrites the matmul so that the program writes the operand to memory before the compiler's code
/// packs the operand.
fn rewrite(b: &mut Builder<'_>, op: &Op, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let Op::DotGeneral(product) = op else { unreachable!("it shows") };
    let faults = at_fault(b.function, product, operands);
    let mut alone = operands.to_vec();
    for (operand, is_at_fault) in alone.iter_mut().zip(faults) {
        if is_at_fault {
            *operand = b.op(OptimizationBarrier {}, &[*operand])?;
        }
    }
    b.op(op.clone(), &alone)
}
