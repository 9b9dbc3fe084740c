//! Jinja's filters and tests for numbers.

use std::cmp::Ordering;

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, State, Value, args};
use num_bigint::BigInt;
use num_traits::Signed;

use crate::budget::Budget;
use crate::numbers::{self, PythonNumber};
use crate::{invalid, operate, str_methods};

pub fn add_tests(environment: &mut Environment<'static>) {
    let is_bool = |value: &Value| value.kind() == ValueKind::Bool;
    environment.add_test("number", move |value: &Value| numbers::is_number(value) || is_bool(value));
    environment.add_test("integer", |value: &Value| value.is_integer() || numbers::large(value).is_some());
    environment.add_test("float", |value: &Value| value.kind() == ValueKind::Number && !value.is_integer());
    environment.add_test("even", |value: &Value| remains(value, &Value::from(2), 0));
    environment.add_test("odd", |value: &Value| remains(value, &Value::from(2), 1));
    environment.add_test("divisibleby", |value: &Value, by: &Value| remains(value, by, 0));
}

/// Whether a division has a remainder.
fn remains(value: &Value, by: &Value, remainder: u8) -> Result<bool, Error> {
    let undefined = || Error::from(ErrorKind::UndefinedError);
    if value.is_undefined() || by.is_undefined() {
        return Err(undefined());
    }
    let (Some(value), Some(by)) = (PythonNumber::of(value), PythonNumber::of(by)) else {
        return Err(invalid("a value that is no number has no remainder"));
    };
    let (_, rest) = numbers::divide_and_remain(&value, &by)?;
    Ok(rest.compare(&PythonNumber::Integer(remainder.into())) == Some(Ordering::Equal))
}

pub fn abs(value: &Value) -> Result<Value, Error> {
    match PythonNumber::of(value) {
        Some(PythonNumber::Integer(number)) => Ok(PythonNumber::Integer(number.abs()).value()),
        Some(PythonNumber::Real(number)) => Ok(Value::from(number.abs())),
        None if value.is_undefined() => Err(Error::from(ErrorKind::UndefinedError)),
        None => Err(invalid(format!("a {} has no absolute value", value.kind()))),
    }
}

/// Jinja's filter `sum`, which adds the items of a list, or an attribute of each item.
pub fn sum(
    budget: Budget,
    state: &mut State,
    value: &Value,
    attribute: &Value,
    start: &Value,
) -> Result<Value, Error> {
    let items = if attribute.is_undefined() || attribute.is_none() {
        value.clone()
    } else {
        let named = minijinja::value::Kwargs::from_iter([("attribute", attribute.clone())]);
        state.apply_filter("map", args![value, named])?
    };
    let start = if start.is_undefined() { Value::from(0) } else { start.clone() };
    if start.kind() == ValueKind::String {
        return Err(invalid("`sum` cannot add texts; use the filter `join`"));
    }
    items.try_iter()?.try_fold(start, |sum, item| operate::add(budget, &sum, &item))
}

/// Jinja's filter `round`, which rounds to a number of decimals. The method is `common`, `ceil` or `floor`.
pub fn round(value: &Value, precision: Option<i64>, method: Option<&str>) -> Result<Value, Error> {
    let number = match PythonNumber::of(value) {
        Some(number) => number,
        None if value.is_undefined() => return Err(Error::from(ErrorKind::UndefinedError)),
        None => return Err(invalid(format!("a {} is no number to round", value.kind()))),
    };
    let precision = precision.unwrap_or(0);
    if precision.unsigned_abs() > numbers::DIGITS as u64 {
        return Err(invalid(format!("the precision is {precision}, expected at most {}", numbers::DIGITS)));
    }
    let method = method.unwrap_or("common");
    if method == "common" {
        return Ok(match number {
            PythonNumber::Integer(number) if precision >= 0 => PythonNumber::Integer(number).value(),
            PythonNumber::Integer(number) => {
                PythonNumber::Integer(nearest(&number, false, precision)).value()
            }
            PythonNumber::Real(number) => Value::from(rounded(number, precision)),
        });
    }
    let up = match method {
        "ceil" => true,
        "floor" => false,
        _ => {
            return Err(invalid(format!(
                "the method of `round` is `{method:.40}`, expected `common`, `ceil` or `floor`"
            )));
        }
    };
    let scale = numbers::power(&PythonNumber::Integer(10.into()), &PythonNumber::Integer(precision.into()))?;
    let whole = match numbers::multiply(&number, &scale)? {
        PythonNumber::Integer(number) => Some(number),
        PythonNumber::Real(number) => numbers::whole(if up { number.ceil() } else { number.floor() }),
    };
    let whole = whole.ok_or_else(|| invalid("a float that is not finite has no integer"))?;
    numbers::divide(&PythonNumber::Integer(whole), &scale).map(PythonNumber::value)
}

/// Python's `round(number, precision)`, which rounds the exact decimal value of a float. A tie goes
/// to the even digit.
fn rounded(number: f64, precision: i64) -> f64 {
    match usize::try_from(precision) {
        _ if !number.is_finite() => number,
        Ok(decimals) => format!("{number:.decimals$}").parse().unwrap_or(number),
        Err(_) => {
            let whole = numbers::whole(number).unwrap_or_default();
            let rounded = PythonNumber::Integer(nearest(&whole, number.fract() != 0.0, precision));
            rounded.real().unwrap_or(f64::INFINITY).copysign(number)
        }
    }
}

/// Rounds an integer to a multiple of a power of 10. `more` tells that the exact number is beyond
/// the integer by a fraction.
fn nearest(number: &BigInt, more: bool, precision: i64) -> BigInt {
    let unit = BigInt::from(10).pow(u32::try_from(precision.unsigned_abs()).unwrap_or(u32::MAX));
    let size = number.abs();
    let (mut count, rest) = (&size / &unit, &size % &unit);
    let twice: BigInt = rest * 2;
    let order = twice.cmp(&unit).then(if more { Ordering::Greater } else { Ordering::Equal });
    if order.is_gt() || (order.is_eq() && count.bit(0)) {
        count += 1;
    }
    let size = count * unit;
    if number.is_negative() { -size } else { size }
}

/// Jinja's filter `int`, which returns `default` for a value that is not a number.
pub fn int(value: &Value, default: Value, base: Option<u32>) -> Result<Value, Error> {
    let number = match PythonNumber::of(value) {
        Some(PythonNumber::Integer(number)) => return Ok(PythonNumber::Integer(number).value()),
        Some(PythonNumber::Real(number)) => Some(number),
        None if value.is_undefined() => return Err(Error::from(ErrorKind::UndefinedError)),
        None => match value.as_str() {
            Some(text) => {
                let text = number_text(text)?;
                if let Some(whole) = whole_number(text, base.unwrap_or(10))? {
                    return Ok(PythonNumber::Integer(whole).value());
                }
                // If the text is an infinite number, the filter returns the default.
                real_number(text).filter(|number| number.is_finite())
            }
            None => None,
        },
    };
    match number.map(|number| (number, numbers::whole(number))) {
        Some((_, Some(whole))) => Ok(PythonNumber::Integer(whole).value()),
        Some((number, None)) if !number.is_nan() => {
            Err(invalid(format!("{number:e} is too large for an integer")))
        }
        _ if default.is_undefined() => Ok(Value::from(0)),
        _ => Ok(default),
    }
}

/// Jinja's filter `float`, which returns `default` for a value that is not a number.
pub fn float(value: &Value, default: Value) -> Result<Value, Error> {
    let number = match (PythonNumber::of(value), value.as_str()) {
        (Some(number), _) => Some(number.real()?),
        (None, Some(text)) => real_number(number_text(text)?),
        (None, None) if value.is_undefined() => return Err(Error::from(ErrorKind::UndefinedError)),
        (None, None) => None,
    };
    let default = if default.is_undefined() { Value::from(0.0) } else { default };
    Ok(number.map_or(default, Value::from))
}

/// Removes white space at the two ends of a text, to parse the text as a number. Digits outside of
/// ASCII are an error, because this crate does not contain Python's tables of such digits.
fn number_text(text: &str) -> Result<&str, Error> {
    let text = str_methods::strip(text, None);
    if text.is_ascii() { Ok(text) } else { Err(invalid("a text that is no ASCII is not read as a number")) }
}

/// Removes the underscores between digits. Returns `None` if an underscore is not between two digits.
fn digits(text: &str, is_digit: impl Fn(char) -> bool) -> Option<String> {
    let parts: Vec<_> = text.split('_').collect();
    let stands_between = |pair: &[&str]| pair[0].ends_with(&is_digit) && pair[1].starts_with(&is_digit);
    parts.windows(2).all(stands_between).then(|| parts.concat())
}

/// Python's `int(text, base)`. Returns `None` if the text is not an integer.
fn whole_number(text: &str, base: u32) -> Result<Option<BigInt>, Error> {
    if !(2..=36).contains(&base) {
        return Err(invalid(format!("the base is {base}, expected one from 2 to 36")));
    }
    let (sign, mut rest) = text.split_at(usize::from(text.starts_with(['+', '-'])));
    let prefixes = [(2, ["0b", "0B"]), (8, ["0o", "0O"]), (16, ["0x", "0X"])];
    for (_, prefixes) in prefixes.iter().filter(|(of, _)| *of == base) {
        let behind = prefixes.iter().find_map(|prefix| rest.strip_prefix(prefix));
        rest = behind.map_or(rest, |behind| behind.strip_prefix('_').unwrap_or(behind));
    }
    let is_digit = |c: char| c.is_digit(base);
    let Some(digits) = digits(rest, is_digit).filter(|all| !all.is_empty() && all.chars().all(is_digit))
    else {
        return Ok(None);
    };
    let number = numbers::parsed(&digits, base)?;
    Ok(number.map(|number| if sign == "-" { -number } else { number }))
}

/// Python's `float(text)`. Returns `None` if the text is not a number.
fn real_number(text: &str) -> Option<f64> {
    digits(text, |c| c.is_ascii_digit())?.parse().ok()
}
