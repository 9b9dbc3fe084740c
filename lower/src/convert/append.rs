//! Converts `append` to primitive operations.

use ops::ops::{
    Append, BinaryKind, BroadcastInDim, Compare, Direction, Gather, Iota, Permute, Reshape, Select,
};
use ops::{ElementType, InferError, TensorType};
use trace::{Builder, NodeId};

/// The expanded operations select a new value for each slot of the cache. The new value of a slot is the
/// vector of the token for this slot, or the old value of the slot if no token belongs to the slot.
pub(crate) fn convert(b: &mut Builder<'_>, op: &Append, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let [cache, new, start, count] = operands[..] else { unreachable!("inferred") };
    let shape = b.ty(cache).shape.clone();
    let slots = shape[op.axis];
    if b.ty(new).count() == 0 {
        return Ok(cache);
    }
    let lead = if Append::by_row(b.ty(start)) { vec![0, op.axis] } else { vec![op.axis] };
    let index = TensorType::new(ElementType::I32, lead.iter().map(|&axis| shape[axis]).collect::<Vec<_>>());
    let over_slots = |b: &mut Builder<'_>, number: NodeId| {
        let axes = (0..b.ty(number).rank()).collect();
        b.op(BroadcastInDim { shape: index.shape.clone(), axes }, &[number])
    };
    let slot = b.op(Iota { ty: index.clone(), axis: lead.len() - 1 }, &[])?;
    let (start, count) = (over_slots(b, start)?, over_slots(b, count)?);
    let mut token = b.binary(BinaryKind::Subtract, slot, start)?;
    if op.ring {
        // Adding a multiple of the number of slots makes the dividend positive without overflow.
        let turns = (i32::MAX as usize / 2 / slots.max(1) * slots) as f64;
        let ahead = b.with_scalar(BinaryKind::Add, token, turns)?;
        let whole = b.with_scalar(BinaryKind::Divide, ahead, slots as f64)?;
        let whole = b.with_scalar(BinaryKind::Multiply, whole, slots as f64)?;
        token = b.binary(BinaryKind::Subtract, ahead, whole)?;
    }
    let zero = b.splat(token, 0.0)?;
    let begun = b.op(Compare { direction: Direction::Le }, &[zero, token])?;
    let real = b.op(Compare { direction: Direction::Lt }, &[token, count])?;
    let is_new = b.binary(BinaryKind::And, begun, real)?;
    let is_new = b.op(BroadcastInDim { shape, axes: lead.clone() }, &[is_new])?;
    let new = picked(b, new, &lead, token)?;
    b.op(Select {}, &[is_new, new, cache])
}

/// Selects the tokens of `new` whose indices are in `indices`. The last axis in `lead` is the axis
/// of tokens; the selected tokens can differ for each index of the other axes in `lead`.
fn picked(b: &mut Builder<'_>, new: NodeId, lead: &[usize], indices: NodeId) -> Result<NodeId, InferError> {
    let ty = b.ty(new).clone();
    let of_each = b.ty(indices).shape.clone();
    let (rows, tokens) = (&lead[..lead.len() - 1], ty.shape[lead[lead.len() - 1]]);
    if tokens == 1 {
        let mut shape = ty.shape.clone();
        lead.iter().zip(&of_each).for_each(|(&axis, &extent)| shape[axis] = extent);
        return b.op(BroadcastInDim { shape, axes: (0..ty.rank()).collect() }, &[new]);
    }
    let rest: Vec<usize> = (0..ty.rank()).filter(|axis| !lead.contains(axis)).collect();
    let order = [lead, &rest].concat();
    let mut table = b.op(Permute { order: order.clone() }, &[new])?;
    let mut indices = indices;
    if let [row] = rows {
        // All rows are merged into one table, and each index is shifted to the tokens of its own row.
        let lengths = rest.iter().map(|&axis| ty.shape[axis]);
        let shape = std::iter::once(ty.shape[*row] * tokens).chain(lengths).collect();
        table = b.op(Reshape { shape }, &[table])?;
        let first = b.op(Iota { ty: b.ty(indices).clone(), axis: 0 }, &[])?;
        let first = b.with_scalar(BinaryKind::Multiply, first, tokens as f64)?;
        let within = b.with_scalar(BinaryKind::Minimum, indices, tokens as f64 - 1.0)?;
        let within = b.with_scalar(BinaryKind::Maximum, within, 0.0)?;
        indices = b.binary(BinaryKind::Add, within, first)?;
    }
    let picked = b.op(Gather {}, &[table, indices])?;
    let mut back = vec![0; order.len()];
    order.into_iter().enumerate().for_each(|(place, axis)| back[axis] = place);
    b.op(Permute { order: back }, &[picked])
}
