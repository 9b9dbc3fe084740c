//! Mathematical functions of 16 numbers, for which processors have no instructions.

use ops::ops::{BinaryKind, UnaryKind};

use crate::code::{Element, Type, Value};

const LANES: Type = Type::lanes(16, Element::F32);
const INTEGERS: Type = Type::lanes(16, Element::I32);

/// `None` if kernels do not support the function.
pub(crate) fn unary(kind: UnaryKind) -> Option<fn(Value<'_>) -> Value<'_>> {
    Some(match kind {
        UnaryKind::Negate => negative,
        UnaryKind::Abs => |x| x.abs(),
        UnaryKind::Exponential => exp,
        UnaryKind::Tanh => tanh,
        UnaryKind::Logistic => |x| one(x).divide(one(x) + exp(negative(x))),
        UnaryKind::Sqrt => |x| x.square_root(),
        UnaryKind::Rsqrt => |x| one(x).divide(x.square_root()),
        UnaryKind::Round => |x| x.round(),
        UnaryKind::Log | UnaryKind::Floor | UnaryKind::Not => return None,
    })
}

/// `None` if kernels do not support the function.
pub(crate) fn binary(kind: BinaryKind) -> Option<for<'k> fn(Value<'k>, Value<'k>) -> Value<'k>> {
    Some(match kind {
        BinaryKind::Add => |a, b| a + b,
        BinaryKind::Subtract => |a, b| a - b,
        BinaryKind::Multiply => |a, b| a * b,
        BinaryKind::Divide => |a, b| a.divide(b),
        BinaryKind::Maximum => |a, b| a.max(b),
        BinaryKind::Minimum => |a, b| a.min(b),
        BinaryKind::Power | BinaryKind::And | BinaryKind::Or => return None,
    })
}

fn one(like: Value<'_>) -> Value<'_> {
    like.code().constant(LANES, 1.0)
}

fn negative(x: Value<'_>) -> Value<'_> {
    x.code().constant(LANES, -0.0) - x
}

/// eˣ with an error of at most 2 units in the last place; 0 below −104, infinite above 89. With x = n ln 2 +
/// r, eˣ = 2ⁿ · eʳ: n becomes the exponent, and a Taylor polynomial computes eʳ (Cody and Waite, "Software
/// Manual for the Elementary Functions", 1980, ch. 6).
pub(crate) fn exp(x: Value<'_>) -> Value<'_> {
    let code = x.code();
    let number = |value: f64| code.constant(LANES, value);
    let x = x.max(number(-104.0)).min(number(89.0));
    let n = (x * number(std::f64::consts::LOG2_E)).round();
    // ln 2 is split into two parts. The first part has few bits, so its multiples are exact.
    let r = n.multiply_add(number(-0.693_359_375), x);
    let r = n.multiply_add(number(2.121_944_400_546_905_8e-4), r);
    let coefficients = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let polynomial = coefficients[1..]
        .iter()
        .fold(number(coefficients[0]), |sum, &coefficient| sum.multiply_add(r, number(coefficient)));
    // 2ⁿ is the product of two factors, because for the smallest and largest n, 2ⁿ is not a normal float.
    let half = (n * number(0.5)).round();
    polynomial * power(half) * power(n - half)
}

/// Computes 2ⁿ for whole numbers n from −126 to 127.
fn power(n: Value<'_>) -> Value<'_> {
    let exponent = n.convert(Element::I32) + n.code().constant(INTEGERS, 127.0);
    exponent.shift_left(23).bits(LANES)
}

/// Near 0, the Taylor polynomial up to x¹³, because a subtraction would lose small x. The next term is below
/// half a unit in the last place. For |x| ≥ 0.45, (1 − e⁻²ˣ) / (1 + e⁻²ˣ) of |x| with the sign of x.
pub(crate) fn tanh(x: Value<'_>) -> Value<'_> {
    let code = x.code();
    let number = |value: f64| code.constant(LANES, value);
    let magnitude = x.abs();
    let small = exp(magnitude.min(number(20.0)) * number(-2.0));
    let ratio = (number(1.0) - small).divide(number(1.0) + small);
    let ratio = ratio.or_else(x.greater(number(0.0)), number(0.0) - ratio);
    let coefficients =
        [21844.0 / 6081075.0, -1382.0 / 155925.0, 62.0 / 2835.0, -17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0];
    let square = x * x;
    let polynomial = coefficients[1..]
        .iter()
        .fold(number(coefficients[0]), |sum, &coefficient| sum.multiply_add(square, number(coefficient)));
    let near = (polynomial * square).multiply_add(x, x);
    near.or_else(number(0.45).greater(magnitude), ratio)
}
