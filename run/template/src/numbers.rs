//! Python's integers and floating-point numbers. minijinja's integers have at most 128 bits, and
//! its operators differ from Python's operators in many places.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use minijinja::value::{DynObject, Object, ObjectRepr, ValueKind};
use minijinja::{Error, Value};
use num_bigint::{BigInt, Sign};
use num_traits::{Pow, Signed, ToPrimitive, Zero};

use crate::invalid;

/// The largest number of digits of an integer. Python converts no longer integer from or to a text
/// (`sys.int_info.default_max_str_digits`).
pub const DIGITS: usize = 4300;

/// The largest number of bits of a result. The number is large enough for integers of [`DIGITS`] digits.
const BITS: u64 = 1 << 14;

/// An integer with more bits than minijinja's integers. Every integer that fits into an `i128` is
/// a number of minijinja instead.
#[derive(Debug)]
struct Large(BigInt);

impl Object for Large {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<Ordering> {
        other.downcast_ref::<Self>().map(|other| self.0.cmp(&other.0))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A Python number. Python's `bool` is an integer.
#[derive(Clone, Debug)]
pub enum PythonNumber {
    Integer(BigInt),
    Real(f64),
}

use PythonNumber::{Integer, Real};

impl PythonNumber {
    /// The number in a value, or `None` if the value is not a number.
    pub fn of(value: &Value) -> Option<Self> {
        match value.kind() {
            ValueKind::Bool => Some(Integer(u8::from(value.is_true()).into())),
            ValueKind::Number if value.is_integer() => match i128::try_from(value.clone()) {
                Ok(number) => Some(Integer(number.into())),
                Err(_) => u128::try_from(value.clone()).ok().map(|number| Integer(number.into())),
            },
            ValueKind::Number => f64::try_from(value.clone()).ok().map(Real),
            _ => large(value).cloned().map(Integer),
        }
    }

    pub fn value(self) -> Value {
        match self {
            Real(number) => Value::from(number),
            Integer(number) => match (number.to_i64(), number.to_i128()) {
                (Some(small), _) => Value::from(small),
                (None, Some(small)) => Value::from(small),
                (None, None) => Value::from_object(Large(number)),
            },
        }
    }

    /// Converts the number to a float, as Python does for an operator with an integer and a float.
    pub fn real(&self) -> Result<f64, Error> {
        match self {
            Real(number) => Ok(*number),
            Integer(number) => number
                .to_f64()
                .filter(|number| number.is_finite())
                .ok_or_else(|| invalid("an integer is too large for a float")),
        }
    }

    fn is_zero(&self) -> bool {
        match self {
            Real(number) => *number == 0.0,
            Integer(number) => number.is_zero(),
        }
    }

    /// Compares two numbers exactly. Returns `None` if a number is NaN.
    pub fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Integer(a), Integer(b)) => Some(a.cmp(b)),
            (Real(a), Real(b)) => a.partial_cmp(b),
            (Integer(a), Real(b)) => compare(a, *b),
            (Real(a), Integer(b)) => compare(b, *a).map(Ordering::reverse),
        }
    }
}

/// Compares an integer with a float, without rounding the integer.
fn compare(integer: &BigInt, real: f64) -> Option<Ordering> {
    if real.is_nan() {
        return None;
    }
    let Some(whole) = whole(real) else {
        return Some(if real > 0.0 { Ordering::Less } else { Ordering::Greater });
    };
    let rest = || 0.0.partial_cmp(&real.fract()).unwrap_or(Ordering::Equal);
    Some(integer.cmp(&whole).then_with(rest))
}

/// The integer in a value if the integer has too many bits for minijinja.
pub fn large(value: &Value) -> Option<&BigInt> {
    value.downcast_object_ref::<Large>().map(|large| &large.0)
}

/// Whether a value is an integer or a float. Unlike in Python, `true` is not a number.
pub fn is_number(value: &Value) -> bool {
    value.kind() == ValueKind::Number || large(value).is_some()
}

/// The float without its fraction, or `None` if the float is not finite.
pub fn whole(real: f64) -> Option<BigInt> {
    if !real.is_finite() {
        return None;
    }
    let bits = real.abs().trunc().to_bits();
    let exponent = (bits >> 52) as i64 - 1075;
    let mantissa = BigInt::from((bits & ((1 << 52) - 1)) | (1 << 52));
    let size = match exponent {
        ..-52 => BigInt::ZERO,
        -52..0 => mantissa >> -exponent,
        0.. => mantissa << exponent,
    };
    Some(if real < 0.0 { -size } else { size })
}

/// Parses the digits of an integer, with a sign and without white space.
pub fn parsed(digits: &str, base: u32) -> Result<Option<BigInt>, Error> {
    if digits.len() > DIGITS {
        return Err(invalid(format!("an integer has {} digits, expected at most {DIGITS}", digits.len())));
    }
    Ok(BigInt::parse_bytes(digits.as_bytes(), base))
}

/// Formats a number like Python's `repr`.
pub fn repr(value: &Value) -> Result<String, Error> {
    match PythonNumber::of(value) {
        Some(Integer(number)) => {
            let text = number.to_string();
            if text.len() > DIGITS + usize::from(number.is_negative()) {
                Err(invalid(format!("an integer has more than {DIGITS} digits")))
            } else {
                Ok(text)
            }
        }
        Some(Real(number)) => Ok(files::python_float(number)),
        None => Err(invalid(format!("a {} is no number", value.kind()))),
    }
}

pub fn add(a: &PythonNumber, b: &PythonNumber) -> Result<PythonNumber, Error> {
    match (a, b) {
        (Integer(a), Integer(b)) => bounded(a + b),
        _ => Ok(Real(a.real()? + b.real()?)),
    }
}

pub fn subtract(a: &PythonNumber, b: &PythonNumber) -> Result<PythonNumber, Error> {
    match (a, b) {
        (Integer(a), Integer(b)) => bounded(a - b),
        _ => Ok(Real(a.real()? - b.real()?)),
    }
}

pub fn multiply(a: &PythonNumber, b: &PythonNumber) -> Result<PythonNumber, Error> {
    match (a, b) {
        (Integer(a), Integer(b)) => bounded(a * b),
        _ => Ok(Real(a.real()? * b.real()?)),
    }
}

pub fn negate(number: &PythonNumber) -> PythonNumber {
    match number {
        Integer(number) => Integer(-number),
        Real(number) => Real(-number),
    }
}

/// Python's `a / b`, which is a correctly rounded float.
pub fn divide(a: &PythonNumber, b: &PythonNumber) -> Result<PythonNumber, Error> {
    if b.is_zero() {
        return Err(division_by_zero());
    }
    let (Integer(a), Integer(b)) = (a, b) else { return Ok(Real(a.real()? / b.real()?)) };
    if a.is_zero() {
        return Ok(Real(if b.is_negative() { -0.0 } else { 0.0 }));
    }
    // The quotient has at least 65 bits. A set last bit stands for the remainder, so the conversion
    // to a float rounds the exact quotient.
    let shift = 66 - a.bits() as i64 + b.bits() as i64;
    let (top, bottom) = if shift > 0 { (a << shift, b.clone()) } else { (a.clone(), b << -shift) };
    let (mut quotient, rest) = (&top / &bottom, &top % &bottom);
    if !rest.is_zero() {
        let one = if quotient.is_zero() || quotient.sign() != Sign::Minus { 1 } else { -1 };
        let is_even = !quotient.bit(0);
        quotient += if is_even { one } else { 0 };
    }
    let shift = i32::try_from(shift).unwrap_or(i32::MAX);
    let half = shift / 2;
    let scaled = quotient.to_f64().unwrap_or(f64::INFINITY) * 2f64.powi(-half) * 2f64.powi(half - shift);
    if scaled.is_finite() {
        Ok(Real(scaled))
    } else {
        Err(invalid("the quotient of two integers is too large for a float"))
    }
}

/// Python's `a // b` and `a % b`. The remainder has the sign of `b`.
pub fn divide_and_remain(a: &PythonNumber, b: &PythonNumber) -> Result<(PythonNumber, PythonNumber), Error> {
    if b.is_zero() {
        return Err(division_by_zero());
    }
    if let (Integer(a), Integer(b)) = (a, b) {
        let (mut quotient, mut rest) = (a / b, a % b);
        if !rest.is_zero() && rest.is_negative() != b.is_negative() {
            quotient -= 1;
            rest += b;
        }
        return Ok((Integer(quotient), Integer(rest)));
    }
    // Source: `_float_div_mod` in CPython's `Objects/floatobject.c`.
    let (a, b) = (a.real()?, b.real()?);
    let mut rest = a % b;
    let mut quotient = (a - rest) / b;
    if rest == 0.0 {
        rest = 0f64.copysign(b);
    } else if (b < 0.0) != (rest < 0.0) {
        rest += b;
        quotient -= 1.0;
    }
    let mut floor = quotient.floor();
    if quotient == 0.0 {
        floor = 0f64.copysign(a / b);
    } else if quotient - floor > 0.5 {
        floor += 1.0;
    }
    Ok((Real(floor), Real(rest)))
}

pub fn power(a: &PythonNumber, b: &PythonNumber) -> Result<PythonNumber, Error> {
    if let (Integer(a), Integer(b)) = (a, b)
        && !b.is_negative()
    {
        // Powers of 0, 1 and −1 stay small.
        if a.bits() <= 1 {
            let is_odd = b.bit(0);
            let power = if b.is_zero() || (a.is_negative() && !is_odd) { 1.into() } else { a.clone() };
            return Ok(Integer(power));
        }
        let exponent =
            b.to_u32().filter(|exponent| a.bits().saturating_mul(u64::from(*exponent)) <= 2 * BITS);
        return bounded(Pow::pow(a, exponent.ok_or_else(too_large)?));
    }
    let (a, b) = (a.real()?, b.real()?);
    if a == 0.0 && b < 0.0 {
        return Err(division_by_zero());
    }
    if a < 0.0 && a.is_finite() && b.is_finite() && b.fract() != 0.0 {
        return Err(invalid("a power is a complex number, which is not supported"));
    }
    let power = a.powf(b);
    if power.is_infinite() && a.is_finite() && b.is_finite() {
        Err(invalid("a power is too large for a float"))
    } else {
        Ok(Real(power))
    }
}

fn bounded(number: BigInt) -> Result<PythonNumber, Error> {
    if number.bits() > BITS { Err(too_large()) } else { Ok(Integer(number)) }
}

fn too_large() -> Error {
    invalid(format!("an integer has more than {BITS} bits"))
}

fn division_by_zero() -> Error {
    invalid("division by zero")
}

/// Reads a JSON number like Python's `json.loads`: a number without fraction and exponent is an integer.
pub fn of_json(text: &str) -> Option<PythonNumber> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    match (text, digits.bytes().all(|c| c.is_ascii_digit()) && !digits.is_empty()) {
        (_, true) if digits.len() <= DIGITS => BigInt::parse_bytes(text.as_bytes(), 10).map(Integer),
        (_, true) => None,
        ("NaN", _) => Some(Real(f64::NAN)),
        ("Infinity", _) => Some(Real(f64::INFINITY)),
        ("-Infinity", _) => Some(Real(f64::NEG_INFINITY)),
        _ if digits.starts_with(|c: char| c.is_ascii_digit()) => text.parse().ok().map(Real),
        _ => None,
    }
}
