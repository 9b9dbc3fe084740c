//! Converts `rms_norm` to primitive operations.

use ops::ops::{BinaryKind, BroadcastInDim, ReduceKind, RmsNorm, UnaryKind, WeightStyle};
use ops::{ElementType, InferError};
use trace::{Builder, NodeId};

/// The expanded operations compute the mean of the squares in f32. The style of `op` decides
/// whether the program rounds before or after it multiplies by the weight.
pub(crate) fn convert(b: &mut Builder<'_>, op: &RmsNorm, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let [x, weight] = operands else { unreachable!("inferred") };
    let ty = b.ty(*x).clone();
    let last = ty.rank() - 1;
    let wide = b.convert(*x, ElementType::F32)?;
    let square = b.binary(BinaryKind::Multiply, wide, wide)?;
    let sum = b.reduced_along(ReduceKind::Add, square, last)?;
    let mean = b.with_scalar(BinaryKind::Divide, sum, ty.shape[last] as f64)?;
    let shifted = b.with_scalar(BinaryKind::Add, mean, op.epsilon.0)?;
    let factor = b.unary(UnaryKind::Rsqrt, shifted)?;
    let normalised = b.binary(BinaryKind::Multiply, wide, factor)?;
    let along_last = BroadcastInDim { shape: ty.shape.clone(), axes: vec![last] };
    match op.style {
        WeightStyle::Scale => {
            let rounded = b.convert(normalised, ty.element)?;
            let weight = b.op(along_last, &[*weight])?;
            b.binary(BinaryKind::Multiply, rounded, weight)
        }
        style => {
            let weight = b.convert(*weight, ElementType::F32)?;
            let weight = match style {
                WeightStyle::OnePlus => b.with_scalar(BinaryKind::Add, weight, 1.0)?,
                _ => weight,
            };
            let weight = b.op(along_last, &[weight])?;
            let product = b.binary(BinaryKind::Multiply, normalised, weight)?;
            b.convert(product, ty.element)
        }
    }
}
