use ops::ops::{Gather, Reshape};
use ops::{InferError, Op};
use targets::{Backend, DeviceKind};
use trace::{Builder, Function, NodeId};

use super::{FaultExample, Legalization};

pub(super) const LEGALIZATION: Legalization = Legalization {
    name: "gather by a scalar",
    backends: &[Backend::Iree3_13],
    devices: &DeviceKind::ALL,
    fault: "an index of rank 0 is not clamped: it reads whatever memory it points to",
    examples: &[FaultExample { operations: &[("gather", &[0, 1])], operands: &["i32[3] 7,8,9", "i32[] 3"] }],
    operation: "gather",
    shows,
    rewrite,
};

fn shows(function: &Function, _: &Op, operands: &[NodeId]) -> bool {
    function.node(operands[1]).ty().rank() == 0
}

/// Replaces an operation whose index is a scalar by a gather whose indices have rank 1.
fn rewrite(b: &mut Builder<'_>, _: &Op, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let (table, index) = (operands[0], operands[1]);
    let row = b.ty(table).shape[1..].to_vec();
    let index = b.op(Reshape { shape: vec![1] }, &[index])?;
    let rows = b.op(Gather {}, &[table, index])?;
    b.op(Reshape { shape: row }, &[rows])
}
