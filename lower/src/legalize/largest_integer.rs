use ops::ops::{Binary, BinaryKind, Compare, Direction, Reduce, ReduceKind, Select};
use ops::{ElementType, InferError, Op};
use targets::{Backend, DeviceKind};
use trace::{Builder, Function, NodeId};

use super::{FaultExample, Legalization};

pub(super) const LEGALIZATION: Legalization = Legalization {
    name: "largest integer",
    backends: &[Backend::Iree3_13],
    devices: &[DeviceKind::Cuda, DeviceKind::Hip],
    fault: "the maximum and minimum of signed integers start from the initial values of unsigned ones: a maximum is \
            never below 0, a minimum never above -1 (docs/upstream/smallest_integer.mlir)",
    examples: &[FaultExample {
        operations: &[("reduce kind=minimum axes=[1]", &[0])],
        operands: &["i32[1,1024]"],
    }],
    operation: "reduce",
    shows,
    rewrite,
};

/// The compiler computes the maximum of integers with 0 as the initial value, which is wrong. If at
/// least one number is not negative, the initial value 0 does not affect the maximum. Therefore the
/// rewritten program computes maxima only of numbers that are not negative.
fn shows(function: &Function, op: &Op, operands: &[NodeId]) -> bool {
    let Op::Reduce(Reduce { kind, .. }) = op else { unreachable!("a reduction") };
    matches!(kind, ReduceKind::Maximum | ReduceKind::Minimum)
        && function.node(operands[0]).ty().element == ElementType::I32
}

/// If at least one number is not negative, the rewritten program computes the maximum of the
/// numbers that are not negative. If all numbers are negative, the program first adds an offset to
/// all numbers, so that no number is negative. The program computes the minimum of `x` as `-1 - y`,
/// where `y` is the maximum of `-1 - x`.
fn rewrite(b: &mut Builder<'_>, op: &Op, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let Op::Reduce(reduce) = op else { unreachable!("a reduction") };
    let smallest = reduce.kind == ReduceKind::Minimum;
    let complement = |b: &mut Builder<'_>, x: NodeId| {
        let ones = b.splat(x, -1.0)?;
        b.op(Binary { kind: BinaryKind::Subtract }, &[ones, x])
    };
    let x = if smallest { complement(b, operands[0])? } else { operands[0] };
    let largest =
        |b: &mut Builder<'_>, x: NodeId| b.op(Reduce { kind: ReduceKind::Maximum, ..reduce.clone() }, &[x]);
    let (zero, one, least) = (b.splat(x, 0.0)?, b.splat(x, 1.0)?, b.splat(x, f64::from(i32::MIN))?);
    let negative = b.op(Compare { direction: Direction::Lt }, &[x, zero])?;
    let from_least = b.op(Binary { kind: BinaryKind::Subtract }, &[x, least])?;
    let not_negative = b.op(Select {}, &[negative, zero, x])?;
    let negative_only = b.op(Select {}, &[negative, from_least, zero])?;
    let is_not_negative = b.op(Select {}, &[negative, zero, one])?;
    let (above, below, any) =
        (largest(b, not_negative)?, largest(b, negative_only)?, largest(b, is_not_negative)?);
    let (none, least) = (b.splat(any, 0.0)?, b.splat(below, f64::from(i32::MIN))?);
    let any = b.op(Compare { direction: Direction::Ne }, &[any, none])?;
    let below = b.op(Binary { kind: BinaryKind::Add }, &[below, least])?;
    let found = b.op(Select {}, &[any, above, below])?;
    if smallest { complement(b, found) } else { Ok(found) }
}
