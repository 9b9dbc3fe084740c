//! Converts `rope` to primitive operations.

use ops::InferError;
use ops::ops::{BinaryKind, BroadcastInDim, Concatenate, Narrow, Reshape, Rope, RopeLayout};
use trace::{Builder, NodeId};

/// The rotary embedding maps each pair (a, b) of features to (a·cos − b·sin, b·cos + a·sin). The
/// function does not change features for which the tables have no angle.
pub(crate) fn convert(b: &mut Builder<'_>, op: &Rope, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let [x, cos, sin] = operands else { unreachable!("inferred") };
    let shape = b.ty(*x).shape.clone();
    let (last, features) = (shape.len() - 1, shape[shape.len() - 1]);
    let (tables, half) = (b.ty(*cos).rank(), b.ty(*cos).shape[b.ty(*cos).rank() - 1]);

    // The two elements of each pair, side by side along `pair_axis` of `rotated`.
    let rotated = if 2 * half == features {
        *x
    } else {
        b.op(Narrow { axis: last, start: 0, length: 2 * half }, &[*x])?
    };
    let (rotated, pair_axis, pair_length) = match op.layout {
        RopeLayout::HalfSplit => (rotated, last, half),
        RopeLayout::Interleaved => {
            let paired = [&shape[..last], &[half, 2]].concat();
            (b.op(Reshape { shape: paired }, &[rotated])?, last + 1, 1)
        }
    };
    let first = b.op(Narrow { axis: pair_axis, start: 0, length: pair_length }, &[rotated])?;
    let second = b.op(Narrow { axis: pair_axis, start: pair_length, length: pair_length }, &[rotated])?;

    let axes = if tables == 3 { vec![0, op.axis, last] } else { vec![op.axis, last] };
    let like = BroadcastInDim { shape: b.ty(first).shape.clone(), axes };
    let cos = b.op(like.clone(), &[*cos])?;
    let sin = b.op(like, &[*sin])?;
    let mut turn = |kind, a: NodeId, c: NodeId| {
        let (by_cos, by_sin) =
            (b.binary(BinaryKind::Multiply, a, cos)?, b.binary(BinaryKind::Multiply, c, sin)?);
        b.binary(kind, by_cos, by_sin)
    };
    let turned_first = turn(BinaryKind::Subtract, first, second)?;
    let turned_second = turn(BinaryKind::Add, second, first)?;
    let mut result = b.op(Concatenate { axis: pair_axis }, &[turned_first, turned_second])?;
    if op.layout == RopeLayout::Interleaved {
        result = b.op(Reshape { shape: [&shape[..last], &[2 * half]].concat() }, &[result])?;
    }
    if 2 * half < features {
        let rest = b.op(Narrow { axis: last, start: 2 * half, length: features - 2 * half }, &[*x])?;
        result = b.op(Concatenate { axis: last }, &[result, rest])?;
    }
    Ok(result)
}
