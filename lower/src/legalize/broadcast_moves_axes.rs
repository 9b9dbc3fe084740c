use ops::ops::{BroadcastInDim, Permute};
use ops::{InferError, Op};
use targets::{Backend, DeviceKind};
use trace::{Builder, Function, NodeId};

use super::{FaultExample, Legalization};

pub(super) const LEGALIZATION: Legalization = Legalization {
    name: "broadcast that moves axes",
    backends: &[Backend::Iree3_13],
    devices: &DeviceKind::ALL,
    fault: "a `broadcast_in_dim` that moves axes becomes a transposition by the order that undoes it",
    examples: &[FaultExample {
        operations: &[("broadcast_in_dim shape=[2,2,2] axes=[1,2,0]", &[0])],
        operands: &["i32[2,2,2] 1,2,3,4,5,6,7,8"],
    }],
    operation: "broadcast_in_dim",
    shows,
    rewrite,
};

fn shows(_: &Function, op: &Op, _: &[NodeId]) -> bool {
    matches!(op, Op::BroadcastInDim(broadcast) if !broadcast.axes.is_sorted())
}

fn rewrite(b: &mut Builder<'_>, op: &Op, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let Op::BroadcastInDim(BroadcastInDim { shape, axes }) = op else { unreachable!("it shows") };
    let mut order: Vec<usize> = (0..axes.len()).collect();
    order.sort_by_key(|&axis| axes[axis]);
    let axes = order.iter().map(|&axis| axes[axis]).collect();
    let moved = b.op(Permute { order }, operands)?;
    b.op(BroadcastInDim { shape: shape.clone(), axes }, &[moved])
}
