use ops::ops::{DotGeneral, OptimizationBarrier, Permute};
use ops::{InferError, Op};
use targets::{Backend, DeviceKind};
use trace::{Builder, Function, NodeId, NodeKind};

use super::{FaultExample, Legalization};

pub(super) const LEGALIZATION: Legalization = Legalization {
    name: "product of terms first",
    backends: &[Backend::Iree3_13],
    devices: &[DeviceKind::Cpu],
    fault: "packed for AVX2, a left operand whose contracted axis comes first is read at wrong addresses in \
        every batch but the first (docs/upstream/terms_first.mlir)",
    examples: &[
        FaultExample { operations: &[(VECTOR, &[0, 1])], operands: &[LEFT, RIGHT] },
        FaultExample {
            operations: &[(MATRIX, &[0, 1])],
            operands: &[
                LEFT,
                "f32[4,2,5] -3,-2,-1,0,1,2,3,-3,-2,-1,0,1,2,3,-3,-2,-1,0,1,2,3,-3,-2,-1,0,1,2,3,-3,-2,-1,0,1,2,3,-3,-2,-1,0,1",
            ],
        },
        FaultExample {
            operations: &[("permute order=[1,2,3,0]", &[0]), (PERMUTED, &[2, 1])],
            operands: &[LEFT, RIGHT],
        },
    ],
    operation: "dot_general",
    shows,
    rewrite,
};

/// The operands of an example that shows the compiler's fault. The operands of the example are
/// whole numbers, because sums of whole numbers are exact.
const LEFT: &str = "f32[4,2,3,2] 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47";
const RIGHT: &str = "f32[2,4] 1,2,3,4,5,6,7,8";

const VECTOR: &str =
    "dot_general left_batch=[1] right_batch=[0] left_contract=[0] right_contract=[1] element=f32";
const MATRIX: &str =
    "dot_general left_batch=[1] right_batch=[1] left_contract=[0] right_contract=[0] element=f32";
const PERMUTED: &str =
    "dot_general left_batch=[0] right_batch=[0] left_contract=[3] right_contract=[1] element=f32";

/// The compiler fuses transpositions into the matmul. Whether a matmul triggers the fault therefore
/// depends on the order of the axes in memory.
fn shows(function: &Function, op: &Op, operands: &[NodeId]) -> bool {
    let Op::DotGeneral(DotGeneral { left_batch, left_contract, .. }) = op else { unreachable!("a product") };
    let mut left = operands[0];
    let mut places: Vec<usize> = (0..function.node(left).ty().rank()).collect();
    while let NodeKind::Op(Op::Permute(Permute { order })) = &function.node(left).kind {
        places.iter_mut().for_each(|place| *place = order[*place]);
        left = function.operands(left)[0];
    }
    let is_free = |axis: &usize| !left_batch.contains(axis) && !left_contract.contains(axis);
    let free: Vec<usize> = (0..places.len()).filter(is_free).collect();
    let first = |axes: &[usize]| axes.iter().map(|&axis| places[axis]).min();
    match (first(left_contract), first(left_batch), first(&free)) {
        (Some(term), Some(batch), Some(free)) => term < batch && batch < free,
        _ => false,
    }
}

/// Moves the batch axes of an operand to the front, and the contracted axes of the operand to the
/// end. In memory, the axes of the operand then have the same order.
fn rewrite(b: &mut Builder<'_>, op: &Op, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let Op::DotGeneral(product) = op else { unreachable!("it shows") };
    let (batch, contract) = (product.left_batch.len(), product.left_contract.len());
    let rank = b.ty(operands[0]).rank();
    let taken = [&product.left_batch[..], &product.left_contract].concat();
    let mut order: Vec<usize> = (0..rank).filter(|axis| !taken.contains(axis)).collect();
    order.splice(0..0, product.left_batch.iter().copied());
    order.extend(&product.left_contract);
    let moved = b.op(Permute { order }, &operands[..1])?;
    let alone = b.op(OptimizationBarrier {}, &[moved])?;
    let product = DotGeneral {
        left_batch: (0..batch).collect(),
        left_contract: (rank - contract..rank).collect(),
        ..product.clone()
    };
    b.op(product, &[alone, operands[1]])
}
