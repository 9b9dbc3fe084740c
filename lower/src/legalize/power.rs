use ops::ops::{Binary, BinaryKind, Compare, Direction, Select, UnaryKind};
use ops::{ElementType, InferError, Op};
use targets::{Backend, DeviceKind};
use trace::{Builder, Function, NodeId};

use super::{FaultExample, Legalization};

pub(super) const LEGALIZATION: Legalization = Legalization {
    name: "power",
    backends: &[Backend::Iree3_13],
    devices: &DeviceKind::ALL,
    fault: "aᵇ is computed as exp(b · log a), which is NaN for a negative base and where an infinity meets a zero",
    examples: &[
        FaultExample {
            operations: &[("binary kind=power", &[0, 1])],
            operands: &["f32[2] -2,-3", "f32[2] 2,3"],
        },
        FaultExample {
            operations: &[("binary kind=power", &[0, 1])],
            operands: &["f32[2] 0,-0", "f32[2] 0,3"],
        },
    ],
    operation: "binary",
    shows,
    rewrite,
};

fn shows(_: &Function, op: &Op, _: &[NodeId]) -> bool {
    matches!(op, Op::Binary(Binary { kind: BinaryKind::Power }))
}

/// Computes |a|ᵇ, and corrects the result for those special cases of `pow` that IEEE 754-2019 lists.
fn rewrite(b: &mut Builder<'_>, _: &Op, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let narrow = b.ty(operands[0]).element;
    let base = b.convert(operands[0], ElementType::F32)?;
    let exponent = b.convert(operands[1], ElementType::F32)?;
    let [zero, one] = [b.splat(base, 0.0)?, b.splat(base, 1.0)?];
    let infinity = b.splat(base, f64::NEG_INFINITY)?;
    let nan = b.splat(base, f64::NAN)?;

    let magnitude = b.unary(UnaryKind::Abs, base)?;
    let value = b.binary(BinaryKind::Power, magnitude, exponent)?;
    // The inverse of −0 is −∞.
    let inverse = b.binary(BinaryKind::Divide, one, base)?;
    let floor = b.unary(UnaryKind::Floor, exponent)?;
    let even = b.with_scalar(BinaryKind::Multiply, exponent, 0.5)?;
    let even = b.unary(UnaryKind::Floor, even)?;
    let even = b.with_scalar(BinaryKind::Multiply, even, 2.0)?;

    let mut compare = |direction, x, y| b.op(Compare { direction }, &[x, y]);
    let unit = compare(Direction::Eq, magnitude, one)?;
    let first = compare(Direction::Eq, exponent, zero)?;
    let below = compare(Direction::Lt, base, zero)?;
    let minus_zero = compare(Direction::Lt, inverse, zero)?;
    let whole = compare(Direction::Eq, floor, exponent)?;
    let fraction = compare(Direction::Ne, floor, exponent)?;
    let odd = compare(Direction::Ne, even, exponent)?;
    let finite = compare(Direction::Gt, base, infinity)?;

    let is_one = b.binary(BinaryKind::Or, unit, first)?;
    let negative = b.binary(BinaryKind::Or, below, minus_zero)?;
    let odd = b.binary(BinaryKind::And, odd, whole)?;
    let negated = b.binary(BinaryKind::And, negative, odd)?;
    let undefined = b.binary(BinaryKind::And, below, finite)?;
    let undefined = b.binary(BinaryKind::And, undefined, fraction)?;

    let value = b.op(Select {}, &[is_one, one, value])?;
    let value = b.op(Select {}, &[undefined, nan, value])?;
    let opposite = b.unary(UnaryKind::Negate, value)?;
    let value = b.op(Select {}, &[negated, opposite, value])?;
    b.convert(value, narrow)
}
