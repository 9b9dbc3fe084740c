//! Random graphs that every implementation of StableHLO must compute alike, within its leeway: nothing in them is left
//! undefined, whatever the numbers are.

use tracewright::ops::ops::{Binary, BinaryKind, Compare, Convert, Direction, Select};
use tracewright::ops::{ElementType, InferError, Op, TensorType, Value};
use tracewright::trace::{Builder, NodeId};

use crate::arbitrary::{Dice, Limits, literal, tame_value, value};

/// Left out are i4, of which IREE takes whole bytes only, and large constants, which become globals: the interpreter knows
/// none.
pub const PORTABLE: Limits = Limits {
    accept: |op, types, result| {
        let small = !matches!(op, Op::Constant(_)) || result.bytes() <= 1024;
        small && known(result) && types.iter().all(|ty| known(ty))
    },
    guard,
    leaf: known,
    literal,
};

fn known(ty: &TensorType) -> bool {
    ty.element != ElementType::I4
}

/// Positions and lengths are those of short sequences.
const POSITIONS: [f64; 2] = [-4.0, 9.0];

/// Avoids calls that StableHLO, or the documentation of an operation, leaves undefined. Examples are integer
/// division by zero, the smallest integer divided by −1, and out-of-range conversions. Writes before a
/// cache's first slot, and positions beyond i32, are avoided, too.
fn guard(b: &mut Builder<'_>, op: &Op, operands: &mut [NodeId]) -> Result<(), InferError> {
    let element = |b: &Builder<'_>, id: NodeId| b.ty(id).element;
    match op {
        Op::Binary(Binary { kind: BinaryKind::Divide }) if element(b, operands[0]).is_integer() => {
            let [least, most] = limits(element(b, operands[0]));
            operands[0] = within(b, operands[0], [least + 1.0, most])?;
            let zero = b.splat(operands[1], 0.0)?;
            let one = b.splat(operands[1], 1.0)?;
            let is_zero = b.op(Compare { direction: Direction::Eq }, &[operands[1], zero])?;
            operands[1] = b.op(Select {}, &[is_zero, one, operands[1]])?;
        }
        Op::Convert(Convert { to }) if to.is_integer() => {
            let from = element(b, operands[0]);
            if from.is_float() {
                let itself = b.op(Compare { direction: Direction::Eq }, &[operands[0], operands[0]])?;
                let zero = b.splat(operands[0], 0.0)?;
                operands[0] = b.op(Select {}, &[itself, operands[0], zero])?;
            }
            if from.is_float() || from.bits() > to.bits() {
                let [least, most] = limits(*to);
                operands[0] = within(b, operands[0], [-held(from, -least), held(from, most)])?;
            }
        }
        Op::Append(_) => {
            operands[2] = within(b, operands[2], [0.0, POSITIONS[1]])?;
            operands[3] = within(b, operands[3], POSITIONS)?;
        }
        Op::Sdpa(_) => {
            for operand in operands {
                if element(b, *operand).is_integer() {
                    *operand = within(b, *operand, POSITIONS)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

fn within(b: &mut Builder<'_>, x: NodeId, [least, most]: [f64; 2]) -> Result<NodeId, InferError> {
    let x = b.with_scalar(BinaryKind::Maximum, x, least)?;
    b.with_scalar(BinaryKind::Minimum, x, most)
}

/// The smallest and the largest number of an integer type.
fn limits(element: ElementType) -> [f64; 2] {
    [element.round(f64::NEG_INFINITY), element.round(f64::INFINITY)]
}

/// The largest number of a type that is not above `most`.
fn held(element: ElementType, most: f64) -> f64 {
    let nearest = element.encode(most);
    if element.decode(nearest) > most { element.decode(nearest - 1) } else { element.decode(nearest) }
}

/// Which numbers a graph is given.
#[derive(Clone, Copy, Debug)]
pub enum Numbers {
    /// Small whole numbers: sums of them have no order, and nothing is rounded.
    Whole,
    /// Floats of many digits, none large or small.
    Tame,
    /// All numbers, including NaN, ±∞, ±0, subnormals and the largest of each type. Such values hide most
    /// errors.
    Any,
}

impl Numbers {
    pub const ALL: [Self; 3] = [Self::Whole, Self::Tame, Self::Any];

    pub fn value(self, dice: &mut Dice, ty: &TensorType) -> Value {
        match self {
            Self::Whole => {
                let data: Vec<f64> = (0..ty.count()).map(|_| dice.below(9) as f64 - 4.0).collect();
                Value::new(ty.clone(), data)
            }
            Self::Tame => tame_value(dice, ty),
            Self::Any => value(dice, ty),
        }
    }
}
