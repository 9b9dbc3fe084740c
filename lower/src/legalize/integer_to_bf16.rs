use ops::ops::{BinaryKind, Compare, Convert, Direction, ReducePrecision, Select, UnaryKind};
use ops::{ElementType, InferError, Op};
use targets::{Backend, DeviceKind};
use trace::{Builder, Function, NodeId, NodeKind};

use super::sum_of_constants::is_fixed;
use super::{FaultExample, Legalization};

pub(super) const LEGALIZATION: Legalization = Legalization {
    name: "integer to bf16",
    backends: &[Backend::Iree3_13],
    devices: &DeviceKind::ALL,
    fault: "a conversion of integers to bf16 does not link on processors that have no instruction for it",
    examples: &[
        FaultExample { operations: &[("convert to=bf16", &[0])], operands: &["i32[2] 2147483647,-257"] },
        FaultExample { operations: &[("convert to=bf16", &[0])], operands: &["i8[2] 127,-128"] },
        // The compiler removes a multiplication by one.
        FaultExample {
            operations: &[
                ("convert to=f32", &[0]),
                ("constant value=f32[1,4] splat 1.0", &[]),
                ("binary kind=multiply", &[1, 2]),
                ("convert to=bf16", &[3]),
            ],
            operands: &["i8[1,4] 7,0,-1,7"],
        },
    ],
    operation: "convert",
    shows,
    rewrite,
};

fn shows(function: &Function, op: &Op, operands: &[NodeId]) -> bool {
    matches!(op, Op::Convert(Convert { to: ElementType::Bf16 })) && are_integers(function, operands[0])
}

/// Whether the node contains integers, or numbers that elementwise operations compute only from integers and
/// constants. The function also returns true for a node that has an integer type itself.
fn are_integers(function: &Function, id: NodeId) -> bool {
    if !function.node(id).ty().element.is_float() {
        return true;
    }
    let NodeKind::Op(
        Op::Binary(_) | Op::Convert(_) | Op::Reshape(_) | Op::Permute(_) | Op::BroadcastInDim(_),
    ) = &function.node(id).kind
    else {
        return false;
    };
    let operands = function.operands(id);
    let mut open = operands.iter().filter(|&&operand| !is_fixed(function, operand));
    open.next().is_some_and(|&one| open.next().is_none() && are_integers(function, one))
}

fn rewrite(b: &mut Builder<'_>, _: &Op, operands: &[NodeId]) -> Result<NodeId, InferError> {
    over_f32(b, operands[0])
}

/// Converts numbers to f32, rounds the numbers to the precision of bf16, and then converts the
/// rounded numbers to bf16. The compiler would merge two adjacent conversions, so a rounding
/// operation separates the two conversions.
pub(super) fn over_f32(b: &mut Builder<'_>, x: NodeId) -> Result<NodeId, InferError> {
    let exact = if b.ty(x).element == ElementType::I32 { few_bits(b, x)? } else { x };
    let wide = b.convert(exact, ElementType::F32)?;
    let rounded = b.op(ReducePrecision { to: ElementType::Bf16 }, &[wide])?;
    b.convert(rounded, ElementType::Bf16)
}

/// Replaces an i32 by another i32 that f32 represents exactly, and that becomes the same bf16 after rounding.
/// Above 2²⁴, the boundaries at which bf16 rounds up or down are multiples of 2¹⁶. Therefore all numbers
/// between two neighbouring multiples of 2⁸ round to the same bf16. The function replaces all numbers between
/// two neighbouring multiples of 2⁸ by the middle of the interval, which has 24 bits.
fn few_bits(b: &mut Builder<'_>, x: NodeId) -> Result<NodeId, InferError> {
    let multiple = b.with_scalar(BinaryKind::Divide, x, 256.0)?;
    let multiple = b.with_scalar(BinaryKind::Multiply, multiple, 256.0)?;
    let rest = b.binary(BinaryKind::Subtract, x, multiple)?;
    // The result is −128, 0 or 128.
    let half = b.with_scalar(BinaryKind::Multiply, rest, 128.0)?;
    let half = b.with_scalar(BinaryKind::Maximum, half, -128.0)?;
    let half = b.with_scalar(BinaryKind::Minimum, half, 128.0)?;
    let middle = b.binary(BinaryKind::Add, multiple, half)?;
    // The absolute value of the smallest i32 is this i32 itself, which is a power of two.
    let magnitude = b.unary(UnaryKind::Abs, x)?;
    let limit = b.splat(x, f64::from(1 << 24))?;
    let small = b.op(Compare { direction: Direction::Le }, &[magnitude, limit])?;
    b.op(Select {}, &[small, x, middle])
}
