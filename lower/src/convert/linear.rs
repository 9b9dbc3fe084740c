//! Converts `linear` to primitive operations.

use ops::ops::{BinaryKind, BroadcastInDim, DotGeneral, Linear, Reshape};
use ops::{ElementType, InferError};
use trace::{Builder, NodeId};

/// The expanded matmul adds its products in f32. The expanded operations then add the bias, and
/// round the result once. The weight keeps its element type, because a wider element type would
/// increase the number of bytes that the program reads per token.
pub(crate) fn convert(b: &mut Builder<'_>, _: &Linear, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let (x, weight) = (operands[0], operands[1]);
    let (ty, outputs) = (b.ty(x).clone(), b.ty(weight).shape[0]);
    let (rows, inputs) = (ty.shape[..ty.rank() - 1].iter().product(), ty.shape[ty.rank() - 1]);
    let flat = b.op(Reshape { shape: vec![rows, inputs] }, &[x])?;
    let mut sum = product(b, flat, weight)?;
    if let Some(&bias) = operands.get(2) {
        let bias = b.convert(bias, ElementType::F32)?;
        let bias = b.op(BroadcastInDim { shape: vec![rows, outputs], axes: vec![1] }, &[bias])?;
        sum = b.binary(BinaryKind::Add, sum, bias)?;
    }
    let rounded = b.convert(sum, ty.element)?;
    let mut shape = ty.shape;
    shape.pop();
    shape.push(outputs);
    b.op(Reshape { shape }, &[rounded])
}

/// Returns the matmul of x `[rows, inputs]` and the weight `[outputs, inputs]`, summed in f32.
pub(crate) fn product(b: &mut Builder<'_>, x: NodeId, weight: NodeId) -> Result<NodeId, InferError> {
    let product = DotGeneral {
        left_batch: vec![],
        right_batch: vec![],
        left_contract: vec![1],
        right_contract: vec![1],
        element: ElementType::F32,
    };
    b.op(product, &[x, weight])
}
