//! Converts `erf` to primitive operations.

use ops::ops::{BinaryKind, Compare, Direction, Erf, Select, UnaryKind};
use ops::{ElementType, InferError};
use trace::{Builder, NodeId};

/// The coefficients of the polynomials q and r for the error function, beginning with the constant
/// term. For |x| < 1, the function computes erf x = x + x · q(x²). For 1 ≤ x ≤ 4, the function
/// computes erf x = 1 − exp(−r(x)). The script `tests/oracle/erf.py` computes the coefficients of
/// the polynomials, and measures an error of 1.32 units in the last place of f32.
const NEAR: [f64; 7] =
    [0.12837917, -0.37612626, 0.112835854, -0.026853813, 0.0051883277, -0.00080101937, 7.853861e-05];
const FAR: [f64; 7] =
    [0.00035371876, 1.12704, 0.6382257, 0.10303737, -0.02180532, 0.002939608, -0.00018557407];

/// Computes the error function in f32 for every element type of x. The magnitude of erf x is at most 1.
pub(crate) fn convert(b: &mut Builder<'_>, _: &Erf, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let element = b.ty(operands[0]).element;
    let x = b.convert(operands[0], ElementType::F32)?;
    let magnitude = b.unary(UnaryKind::Abs, x)?;
    // Beyond 4, the result in f32 is ±1, and the polynomials are not valid.
    let magnitude = b.with_scalar(BinaryKind::Minimum, magnitude, 4.0)?;

    let square = b.binary(BinaryKind::Multiply, magnitude, magnitude)?;
    let excess = polynomial(b, &NEAR, square)?;
    let excess = b.binary(BinaryKind::Multiply, x, excess)?;
    let near = b.binary(BinaryKind::Add, x, excess)?;

    let exponent = polynomial(b, &FAR, magnitude)?;
    let exponent = b.unary(UnaryKind::Negate, exponent)?;
    let missing = b.unary(UnaryKind::Exponential, exponent)?;
    let one = b.splat(x, 1.0)?;
    let far = b.binary(BinaryKind::Subtract, one, missing)?;
    let opposite = b.unary(UnaryKind::Negate, far)?;

    let is_near = b.op(Compare { direction: Direction::Lt }, &[magnitude, one])?;
    let zero = b.splat(x, 0.0)?;
    let is_negative = b.op(Compare { direction: Direction::Lt }, &[x, zero])?;
    let far = b.op(Select {}, &[is_negative, opposite, far])?;
    let value = b.op(Select {}, &[is_near, near, far])?;
    b.convert(value, element)
}

fn polynomial(b: &mut Builder<'_>, coefficients: &[f64], x: NodeId) -> Result<NodeId, InferError> {
    let Some((&last, rest)) = coefficients.split_last() else { return b.splat(x, 0.0) };
    let leading = b.splat(x, last)?;
    rest.iter().rev().try_fold(leading, |sum, &coefficient| {
        let product = b.binary(BinaryKind::Multiply, sum, x)?;
        b.with_scalar(BinaryKind::Add, product, coefficient)
    })
}
