//! Converts `dequantize` to primitive operations.

use ops::ops::{BinaryKind, BroadcastInDim, Dequantize};
use ops::{ElementType, InferError};
use trace::{Builder, NodeId};

/// Multiplies the integers by their scales in f32, and then rounds the product.
pub(crate) fn convert(
    b: &mut Builder<'_>,
    op: &Dequantize,
    operands: &[NodeId],
) -> Result<NodeId, InferError> {
    let [integers, scales] = operands[..] else { unreachable!("inferred") };
    let numbers = b.convert(integers, ElementType::F32)?;
    let (shape, axes) = (b.ty(integers).shape.clone(), (0..b.ty(scales).rank()).collect());
    let scales = b.op(BroadcastInDim { shape, axes }, &[scales])?;
    let numbers = b.binary(BinaryKind::Multiply, numbers, scales)?;
    b.convert(numbers, op.element)
}
