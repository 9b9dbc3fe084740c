//! Functions and filters of Jinja that minijinja does not have, or that behave differently in minijinja.

use std::borrow::Cow;

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{AutoEscape, Error, State, Value, args, filters};

use crate::budget::{self, Budget, blanks};
use crate::generator::Generator;
use crate::str_methods::{self, LINE_ENDS, is_space};
use crate::{collection_methods, escape, invalid, operate, repr_json};

/// Evaluates Python's `value[start:stop:step]` for strings and lists.
pub fn slice(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (start, stop, step): (Option<i64>, Option<i64>, Option<i64>) = from_args(args)?;
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(invalid("slice step cannot be zero"));
    }
    match value.kind() {
        ValueKind::String => {
            let text: Vec<char> = value.as_str().unwrap_or_default().chars().collect();
            let taken = steps(text.len(), start, stop, step).map(|i| text[i]).collect::<String>();
            Ok(escape::like(value, taken))
        }
        _ if collection_methods::is_list(value) => {
            let items: Vec<Value> = value.try_iter()?.collect();
            let taken: Vec<_> = steps(items.len(), start, stop, step).map(|i| items[i].clone()).collect();
            Ok(if value.is_tuple() { Value::from(Tuple::from(taken)) } else { Value::from(taken) })
        }
        other => Err(invalid(format!("value of type {other} cannot be sliced"))),
    }
}

/// Converts the value that a loop iterates over. A string becomes a list of characters, because
/// minijinja cannot detect the last character of a string.
pub fn looped(list: Value) -> Result<Value, Error> {
    match list.as_str() {
        Some(text) => budget::list(text.chars().map(Value::from)),
        None if list.is_none() => Err(invalid("`none` is no list to loop over")),
        None => Ok(list),
    }
}

/// Jinja's test `sequence`, which is true for values that have a length and items.
pub fn is_sequence(value: &Value) -> bool {
    is_iterable(value)
        && (collection_methods::is_list(value)
            || !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable))
}

pub fn is_iterable(value: &Value) -> bool {
    let iterates = [ValueKind::String, ValueKind::Undefined, ValueKind::Seq, ValueKind::Iterable];
    iterates.contains(&value.kind()) || collection_methods::is_dict(value)
}

/// Jinja's filter `length`, which returns 0 for an undefined value.
pub fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { filters::length(value) }
}

/// Jinja's filter `first`, whose result is undefined for an undefined value.
pub fn first(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(Value::UNDEFINED) } else { filters::first(value) }
}

/// Jinja's filter `last`. For an undefined value, `last` returns an undefined value. For a
/// generator, `last` returns an error.
pub fn last(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(Value::UNDEFINED),
        ValueKind::Map => Ok(value.try_iter()?.last().unwrap_or_default()),
        _ if Generator::rest(&value).is_some() => Err(invalid("a generator has no last item")),
        _ => filters::last(value),
    }
}

/// Jinja's filter `items`, which returns no items for an undefined value.
pub fn items(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Undefined => Generator::of(&Value::from(Vec::<Value>::new())),
        _ if collection_methods::is_dict(value) => {
            Generator::of(&collection_methods::call_of_dict(value, "items", &[])?)
        }
        other => Err(invalid(format!("`items` is of dictionaries, found a {other}"))),
    }
}

pub fn reverse(value: &Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        return Ok(escape::like(value, text.chars().rev().collect::<String>()));
    }
    let mut items: Vec<Value> = value.try_iter()?.collect();
    items.reverse();
    let is_generator = Generator::rest(value).is_some();
    let list = Value::from(items);
    if is_generator { Ok(list) } else { Generator::of(&list) }
}

/// Jinja's filter `attr`, which ignores the keys of a dictionary.
pub fn attr(value: &Value, name: &str) -> Result<Value, Error> {
    let is_item = collection_methods::is_dict(value) && !collection_methods::has_method(value, name);
    if is_item { Ok(Value::UNDEFINED) } else { collection_methods::attribute(value, name) }
}

/// Jinja's filter `escape`, which does not change a string that is already marked as `safe`.
pub fn escape_filter(value: &Value) -> Result<Value, Error> {
    if value.is_safe() { Ok(value.clone()) } else { force_escape(value) }
}

pub fn force_escape(value: &Value) -> Result<Value, Error> {
    Ok(Value::from_safe_string(escape::escape_text(&repr_json::str(value)?)?))
}

/// Jinja's filter `string`, which converts a value to a string.
pub fn string(budget: Budget, value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.clone()),
        _ => Ok(Value::from(repr_json::str(&budget.bounded(value.clone())?)?)),
    }
}

/// Jinja's filter `replace`. In a block with `autoescape`, the filter escapes texts that are not
/// marked as `safe` if another text is.
pub fn replace(
    budget: Budget,
    state: &State,
    text: &Value,
    old: &Value,
    new: &Value,
    count: Option<i64>,
) -> Result<Value, Error> {
    let given = [text, old, new].map(repr_json::as_text);
    let [text_of, old_of, new_of] = given;
    let (mut whole, old_of, mut new_of) = (text_of?, old_of?, new_of?);
    let escapes = *state.auto_escape() != AutoEscape::None;
    let is_safe = escapes && (text.is_safe() || old.is_safe() || new.is_safe());
    if is_safe {
        (whole, new_of) = (escape::escaped(text)?.into(), escape::escaped(new)?.into());
    }
    budget.check_replace(&whole, &old_of, &new_of)?;
    let made = match count.and_then(|count| usize::try_from(count).ok()) {
        Some(count) => whole.replacen(&*old_of, &new_of, count),
        None => whole.replace(&*old_of, &new_of),
    };
    Ok(if is_safe { Value::from_safe_string(made) } else { Value::from(made) })
}

/// Jinja's filter `join`, which joins the texts of a list's items.
pub fn join(
    budget: Budget,
    state: &mut State,
    list: &Value,
    between: &Value,
    attribute: &Value,
) -> Result<Value, Error> {
    let separator = repr_json::as_text(between)?;
    budget.check_join(list, separator.len())?;
    let mut list = looped(list.clone())?;
    if !attribute.is_undefined() && !attribute.is_none() {
        list =
            state.apply_filter("map", args![list, Kwargs::from_iter([("attribute", attribute.clone())])])?;
    }
    let items: Vec<Value> = list.try_iter()?.collect();
    let escapes = *state.auto_escape() != AutoEscape::None;
    // If the separator is marked as `safe`, every item is escaped. If an item is, only the
    // separator and the other items are escaped.
    let is_safe = escapes && (between.is_safe() || items.iter().any(Value::is_safe));
    let text = |value: &Value| {
        if is_safe {
            escape::escaped(value).map(Cow::from)
        } else {
            Ok(repr_json::str(value)?.into_owned().into())
        }
    };
    let separator = text(between)?;
    let mut joined = String::new();
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            joined.push_str(&separator);
        }
        joined.push_str(&text(item)?);
        budget.check_bytes(joined.len())?;
    }
    Ok(if is_safe { Value::from_safe_string(joined) } else { Value::from(joined) })
}

/// Jinja's filter `map`, which returns an attribute of each item, or the result of a filter for each item.
/// The filter `map` of minijinja finds attributes, but does not pass named arguments to filters.
pub fn map(state: &mut State, attributes: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let made = match arguments {
        [items, filter, rest @ ..] if let Some(filter) = filter.as_str() => {
            let one = |item: Value| state.apply_filter(filter, &[&[item], rest].concat());
            items.try_iter()?.map(one).collect::<Result<Value, _>>()?
        }
        _ => attributes.call(state, arguments)?,
    };
    Generator::of(&made)
}

/// Jinja's filter `title`, in which words also begin after brackets and hyphens.
pub fn title(value: &Value) -> Result<String, Error> {
    let separates = |c: char| "-({[<".contains(c) || is_space(c);
    let text = repr_json::str(value)?;
    let mut out = String::with_capacity(text.len());
    for word in text.split_inclusive(separates) {
        let mut chars = word.chars();
        out.extend(chars.next().into_iter().flat_map(char::to_uppercase));
        out.push_str(&chars.as_str().to_lowercase());
    }
    Ok(out)
}

pub fn capitalize(value: &Value) -> Result<Value, Error> {
    Ok(escape::like(value, str_methods::capitalize(&repr_json::str(value)?)))
}

pub fn lower(value: &Value) -> Result<Value, Error> {
    Ok(escape::like(value, repr_json::str(value)?.to_lowercase()))
}

pub fn upper(value: &Value) -> Result<Value, Error> {
    Ok(escape::like(value, repr_json::str(value)?.to_uppercase()))
}

pub fn trim(value: &Value, chars: Option<&str>) -> Result<Value, Error> {
    Ok(escape::like(value, str_methods::strip(&repr_json::str(value)?, chars)))
}

pub fn center(value: &Value, width: Option<i64>) -> Result<Value, Error> {
    escape::all_like(value, str_methods::center(&repr_json::str(value)?, width.unwrap_or(80))?)
}

/// Jinja's filter `indent`, which indents the lines of a text. The filter `indent` keeps a line end
/// at the end of the text.
pub fn indent(
    value: &Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
) -> Result<Value, Error> {
    let text = value.as_str().ok_or_else(|| invalid("`indent` is given no text"))?;
    let (first, blank) = (first.unwrap_or(false), blank.unwrap_or(false));
    let width = width.unwrap_or(Value::from(4));
    let margin = match width.as_str() {
        Some(text) => text.to_string(),
        None => blanks(usize::try_from(width)?)?,
    };
    let line = |(i, line): (usize, &str)| {
        let indented = if i == 0 { first } else { blank || !line.is_empty() };
        if indented { format!("{margin}{line}") } else { line.to_string() }
    };
    let text = format!("{text}\n").replace("\r\n", "\n");
    let mut lines: Vec<_> = text.split(LINE_ENDS).enumerate().map(line).collect();
    lines.pop(); // the empty text after the added line end
    Ok(escape::like(value, lines.join("\n")))
}

pub fn truncate(
    budget: Budget,
    value: &Value,
    length: Option<usize>,
    killwords: Option<bool>,
    end: Option<&Value>,
    leeway: Option<usize>,
) -> Result<Value, Error> {
    let text = value.as_str().ok_or_else(|| invalid("`truncate` is given no text"))?;
    let dots = Value::from("...");
    let (length, end) = (length.unwrap_or(255), end.filter(|end| !end.is_undefined()).unwrap_or(&dots));
    let end_len = repr_json::str(end)?.chars().count();
    if end_len > length {
        return Err(invalid(format!("the length of `truncate` is {length}, expected at least {end_len}")));
    }
    if text.chars().count() <= length.saturating_add(leeway.unwrap_or(5)) {
        return Ok(value.clone());
    }
    let kept: String = text.chars().take(length.saturating_sub(end_len)).collect();
    let kept = if killwords.unwrap_or(false) {
        &kept
    } else {
        kept.rsplit_once(' ').map_or(kept.as_str(), |(words, _)| words)
    };
    operate::add(budget, &escape::like(value, kept), end)
}

pub fn wordcount(value: &Value) -> Result<usize, Error> {
    let words = repr_json::str(value)?;
    let words = words.split(|c: char| !c.is_alphanumeric() && c != '_');
    Ok(words.filter(|word| !word.is_empty()).count())
}

/// The indices that the Python slice `start:stop:step` selects from `len` items.
fn steps(len: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> impl Iterator<Item = usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let (lower, upper) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let clamp = |at: i64| if at < 0 { at.saturating_add(len) } else { at }.clamp(lower, upper);
    let (first, last) = if step > 0 { (lower, upper) } else { (upper, lower) };
    let (start, stop) = (start.map_or(first, clamp), stop.map_or(last, clamp));
    let inside = move |at: &i64| if step > 0 { *at < stop } else { *at > stop };
    std::iter::successors(Some(start), move |at| at.checked_add(step))
        .take_while(inside)
        .map(|at| at as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_pythons() {
        let of = |len, start, stop, step| steps(len, start, stop, step).collect::<Vec<_>>();
        assert_eq!(of(0, None, None, -1), [0; 0]);
        assert_eq!(of(4, None, None, -1), [3, 2, 1, 0]);
        assert_eq!(of(5, Some(-2), None, -2), [3, 1]);
        assert_eq!(of(5, Some(9), Some(1), -1), [4, 3, 2]);
        assert_eq!(of(5, Some(1), Some(-1), 2), [1, 3]);
        assert_eq!(of(5, Some(2), Some(4), -1), [0; 0]);
        assert_eq!(of(3, Some(i64::MIN), Some(i64::MAX), i64::MAX), [0]);
    }
}
