//! Python's operators for numbers, texts and lists. A rewritten template calls these functions as filters.

use std::cmp::Ordering;

use files::limits;
use minijinja::value::{Tuple, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};

use crate::budget::{self, Budget};
use crate::numbers::{self, PythonNumber};
use crate::{collection_methods, escape, format, invalid, operators, repr_json};

pub fn add_filters(environment: &mut Environment<'static>, budget: Budget) {
    environment.add_filter("__add__", move |a: &Value, b: &Value| add(budget, a, b));
    environment.add_filter("__mul__", move |a: &Value, b: &Value| multiply(budget, a, b));
    environment.add_filter("__rem__", move |a: &Value, b: &Value| remainder(budget, a, b));
    environment
        .add_filter("__concat__", move |state: &mut State, a: &Value, b: &Value| concat(budget, state, a, b));
    environment.add_filter("__sub__", |a: &Value, b: &Value| calculate("-", a, b, numbers::subtract));
    environment.add_filter("__truediv__", |a: &Value, b: &Value| calculate("/", a, b, numbers::divide));
    environment.add_filter("__pow__", |a: &Value, b: &Value| calculate("**", a, b, numbers::power));
    environment.add_filter("__floordiv__", |a: &Value, b: &Value| {
        calculate("//", a, b, |a, b| Ok(numbers::divide_and_remain(a, b)?.0))
    });
    environment.add_filter(operators::NEGATIVE, |a: &Value| {
        signed(a).map(|number| numbers::negate(&number).value())
    });
    environment.add_filter(operators::POSITIVE, |a: &Value| signed(a).map(PythonNumber::value));
    environment.add_filter(operators::INTEGER, |digits: &str| {
        let parsed = numbers::parsed(&digits.replace('_', ""), 10)?;
        parsed
            .map(|whole| PythonNumber::Integer(whole).value())
            .ok_or_else(|| invalid("an integer has other signs"))
    });
    environment.add_filter("__lt__", |a: &Value, b: &Value| Ok(compare(a, b, 0)? == Some(Ordering::Less)));
    environment.add_filter("__gt__", |a: &Value, b: &Value| Ok(compare(a, b, 0)? == Some(Ordering::Greater)));
    environment
        .add_filter("__le__", |a: &Value, b: &Value| Ok(compare(a, b, 0)?.is_some_and(Ordering::is_le)));
    environment
        .add_filter("__ge__", |a: &Value, b: &Value| Ok(compare(a, b, 0)?.is_some_and(Ordering::is_ge)));
}

/// Adds the tests that compare two values.
pub fn add_tests(environment: &mut Environment<'static>) {
    for name in ["lt", "lessthan"] {
        environment.add_test(name, |a: &Value, b: &Value| Ok(compare(a, b, 0)? == Some(Ordering::Less)));
    }
    for name in ["gt", "greaterthan"] {
        environment.add_test(name, |a: &Value, b: &Value| Ok(compare(a, b, 0)? == Some(Ordering::Greater)));
    }
    environment.add_test("le", |a: &Value, b: &Value| Ok(compare(a, b, 0)?.is_some_and(Ordering::is_le)));
    environment.add_test("ge", |a: &Value, b: &Value| Ok(compare(a, b, 0)?.is_some_and(Ordering::is_ge)));
}

fn unsupported(operator: &str, a: &Value, b: &Value) -> Error {
    if a.is_undefined() || b.is_undefined() {
        Error::new(ErrorKind::UndefinedError, format!("`{operator}` has an undefined operand"))
    } else {
        invalid(format!("`{operator}` cannot take a {} and a {}", a.kind(), b.kind()))
    }
}

fn calculate(
    operator: &str,
    a: &Value,
    b: &Value,
    with: impl Fn(&PythonNumber, &PythonNumber) -> Result<PythonNumber, Error>,
) -> Result<Value, Error> {
    match (PythonNumber::of(a), PythonNumber::of(b)) {
        (Some(a), Some(b)) => with(&a, &b).map(PythonNumber::value),
        _ => Err(unsupported(operator, a, b)),
    }
}

/// The operand of a sign.
fn signed(value: &Value) -> Result<PythonNumber, Error> {
    let kind = if value.is_undefined() { ErrorKind::UndefinedError } else { ErrorKind::InvalidOperation };
    PythonNumber::of(value).ok_or_else(|| Error::new(kind, format!("a {} has no sign", value.kind())))
}

/// Python's `a + b`. If one of two texts is marked as `safe`, the other text is escaped.
pub fn add(budget: Budget, a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(left), Some(right)) = (a.as_str(), b.as_str()) {
        budget.check_bytes(left.len() + right.len())?;
        return if a.is_safe() || b.is_safe() {
            Ok(Value::from_safe_string(escape::escaped(a)? + &escape::escaped(b)?))
        } else {
            Ok(Value::from([left, right].concat()))
        };
    }
    let both = |is: fn(&Value) -> bool| is(a) && is(b);
    if both(collection_methods::is_list) && collection_methods::is_tuple(a) == collection_methods::is_tuple(b)
    {
        let items = budget::items(a.try_iter()?.chain(b.try_iter()?))?;
        return Ok(if collection_methods::is_tuple(a) { Tuple::from(items).into() } else { items.into() });
    }
    calculate("+", a, b, numbers::add)
}

/// Python's `a * b`, which repeats a text or a list.
fn multiply(budget: Budget, a: &Value, b: &Value) -> Result<Value, Error> {
    let repeats = |value: &Value| value.kind() == ValueKind::String || collection_methods::is_list(value);
    let (repeated, count) = match (repeats(a), repeats(b)) {
        (true, false) => (a, b),
        (false, true) => (b, a),
        _ => return calculate("*", a, b, numbers::multiply),
    };
    let Some(PythonNumber::Integer(count)) = PythonNumber::of(count) else {
        return Err(unsupported("*", a, b));
    };
    let count = if count.sign() == num_bigint::Sign::Minus {
        0
    } else {
        usize::try_from(count).unwrap_or(usize::MAX)
    };
    if let Some(text) = repeated.as_str() {
        budget.check_bytes(text.len().saturating_mul(count))?;
        return Ok(escape::like(repeated, text.repeat(count)));
    }
    let items: Vec<Value> = repeated.try_iter()?.collect();
    let count = if items.is_empty() { 0 } else { count };
    if items.len().saturating_mul(count) > limits::TEMPLATE_ITEMS {
        return Err(budget::too_large());
    }
    let items: Vec<Value> = std::iter::repeat_n(items, count).flatten().collect();
    Ok(if collection_methods::is_tuple(repeated) { Tuple::from(items).into() } else { items.into() })
}

fn remainder(budget: Budget, a: &Value, b: &Value) -> Result<Value, Error> {
    match a.kind() {
        ValueKind::String => format::percent(budget, a, b),
        _ => calculate("%", a, b, |a, b| Ok(numbers::divide_and_remain(a, b)?.1)),
    }
}

/// Jinja's `a ~ b`. Jinja escapes texts only in a block with `autoescape`.
fn concat(budget: Budget, state: &State, a: &Value, b: &Value) -> Result<Value, Error> {
    let escapes = *state.auto_escape() != AutoEscape::None && (a.is_safe() || b.is_safe());
    let (left, right) = if escapes {
        (escape::escaped(a)?.into(), escape::escaped(b)?.into())
    } else {
        (repr_json::str(a)?, repr_json::str(b)?)
    };
    budget.check_bytes(left.len() + right.len())?;
    let joined = [&*left, &*right].concat();
    Ok(if escapes { Value::from_safe_string(joined) } else { Value::from(joined) })
}

/// Compares two values in Python's order. Returns `None` if a number is NaN, and an error if the
/// values have no order.
pub fn compare(a: &Value, b: &Value, depth: usize) -> Result<Option<Ordering>, Error> {
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        return Ok(Some(a.cmp(b)));
    }
    if let (Some(a), Some(b)) = (PythonNumber::of(a), PythonNumber::of(b)) {
        return Ok(a.compare(&b));
    }
    let is_list = |value| collection_methods::is_list(value);
    let are_lists = is_list(a) && is_list(b);
    if !are_lists || collection_methods::is_tuple(a) != collection_methods::is_tuple(b) {
        return Err(unsupported("<", a, b));
    }
    if depth > limits::TEMPLATE_DEPTH {
        return Err(budget::too_large());
    }
    let (mut left, mut right) = (a.try_iter()?, b.try_iter()?);
    loop {
        match (left.next(), right.next()) {
            (Some(a), Some(b)) if a == b => {}
            (Some(a), Some(b)) => return compare(&a, &b, depth + 1),
            (a, b) => return Ok(Some(a.is_some().cmp(&b.is_some()))),
        }
    }
}
