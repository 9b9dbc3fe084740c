//! Jinja's filters `sort`, `min` and `max`, which order values as Python does.

use std::cmp::Ordering;

use minijinja::value::{Kwargs, Tuple};
use minijinja::{Error, State, Value, args};

use crate::{budget, jinja, operate};

pub fn sort(
    state: &mut State,
    list: &Value,
    reverse: &Value,
    case_sensitive: &Value,
    attribute: &Value,
) -> Result<Value, Error> {
    let mut items = keyed(state, list, case_sensitive, attribute)?;
    let mut failed = None;
    let mut order = |a: &Value, b: &Value| match operate::compare(a, b, 0) {
        Ok(order) => order.unwrap_or(Ordering::Equal),
        Err(error) => {
            failed.get_or_insert(error);
            Ordering::Equal
        }
    };
    // Python keeps the order of equal items also if it sorts in reverse.
    if reverse.is_true() {
        items.sort_by(|(a, _), (b, _)| order(b, a))
    } else {
        items.sort_by(|(a, _), (b, _)| order(a, b))
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(items.into_iter().map(|(_, item)| item).collect()),
    }
}

pub fn min(
    state: &mut State,
    list: &Value,
    case_sensitive: &Value,
    attribute: &Value,
) -> Result<Value, Error> {
    extreme(keyed(state, list, case_sensitive, attribute)?, Ordering::Less)
}

pub fn max(
    state: &mut State,
    list: &Value,
    case_sensitive: &Value,
    attribute: &Value,
) -> Result<Value, Error> {
    extreme(keyed(state, list, case_sensitive, attribute)?, Ordering::Greater)
}

/// The first of the smallest or largest items. The result is undefined for a list without items.
fn extreme(items: Vec<(Value, Value)>, wanted: Ordering) -> Result<Value, Error> {
    let mut items = items.into_iter();
    let Some(mut best) = items.next() else { return Ok(Value::UNDEFINED) };
    for item in items {
        if operate::compare(&item.0, &best.0, 0)? == Some(wanted) {
            best = item;
        }
    }
    Ok(best.1)
}

/// The items of a list with the keys that decide their order. A key consists of the attributes that
/// `attribute` lists. Unless `case_sensitive` is true, a text counts in lower case.
fn keyed(
    state: &mut State,
    list: &Value,
    case_sensitive: &Value,
    attribute: &Value,
) -> Result<Vec<(Value, Value)>, Error> {
    let items = budget::items(jinja::looped(list.clone())?.try_iter()?)?;
    let folded = |key: Value| match key.as_str() {
        Some(text) if !case_sensitive.is_true() => Value::from(text.to_lowercase()),
        _ => key,
    };
    let parts: Vec<Value> = match attribute.as_str() {
        Some(names) => names.split(',').map(Value::from).collect(),
        None if attribute.is_undefined() || attribute.is_none() => Vec::new(),
        None => vec![attribute.clone()],
    };
    if parts.is_empty() {
        return Ok(items.into_iter().map(|item| (folded(item.clone()), item)).collect());
    }
    let mut keys = vec![Vec::new(); items.len()];
    for part in parts {
        let named = Kwargs::from_iter([("attribute", part)]);
        let column = state.apply_filter("map", args![Value::from(items.clone()), named])?;
        keys.iter_mut().zip(column.try_iter()?).for_each(|(key, value)| key.push(folded(value)));
    }
    Ok(keys.into_iter().map(|key| Value::from(Tuple::from(key))).zip(items).collect())
}
