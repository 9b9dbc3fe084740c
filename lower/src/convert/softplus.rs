//! Converts `softplus` to primitive operations.

use ops::ops::{BinaryKind, Compare, Direction, Select, Softplus, UnaryKind};
use ops::{ElementType, InferError};
use trace::{Builder, NodeId};

/// Computes max(x, 0) + ln(1 + e) with e = exp(−|x|), so that no intermediate value overflows. The
/// function computes in f32 for every element type of x.
///
/// If u is 1 + e, rounded to f32, then ln(1 + e) = e · ln u / (u − 1), or e if u = 1: Higham,
/// "Accuracy and Stability of Numerical Algorithms" (2002), §1.14.1.
pub(crate) fn convert(b: &mut Builder<'_>, _: &Softplus, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let element = b.ty(operands[0]).element;
    let x = b.convert(operands[0], ElementType::F32)?;
    let magnitude = b.unary(UnaryKind::Abs, x)?;
    let exponent = b.unary(UnaryKind::Negate, magnitude)?;
    let e = b.unary(UnaryKind::Exponential, exponent)?;
    let one = b.splat(x, 1.0)?;
    let u = b.binary(BinaryKind::Add, e, one)?;
    let logarithm = b.unary(UnaryKind::Log, u)?;
    let rounded = b.binary(BinaryKind::Subtract, u, one)?;
    let ratio = b.binary(BinaryKind::Divide, logarithm, rounded)?;
    let product = b.binary(BinaryKind::Multiply, e, ratio)?;
    let is_one = b.op(Compare { direction: Direction::Eq }, &[u, one])?;
    let small = b.op(Select {}, &[is_one, e, product])?;
    let zero = b.splat(x, 0.0)?;
    let positive = b.binary(BinaryKind::Maximum, x, zero)?;
    let value = b.binary(BinaryKind::Add, positive, small)?;
    b.convert(value, element)
}
