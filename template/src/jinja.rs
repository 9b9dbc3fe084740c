//! Functions and filters of Jinja that minijinja does not have, or that behave differently in
//! minijinja.

use minijinja::formatting::{self, FormatStyle};
use minijinja::tests::is_divisibleby;
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, from_args};
use minijinja::{AutoEscape, Error, ErrorKind, State, Value, filters};

use crate::budget::{self, Budget, blanks};
use crate::generator::Generator;
use crate::str_methods::{self, LINE_ENDS, is_space};
use crate::{collection_methods, invalid, repr_json};

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
            Ok(Value::from(steps(text.len(), start, stop, step).map(|i| text[i]).collect::<String>()))
        }
        _ if collection_methods::is_list(value) => {
            let items: Vec<Value> = value.try_iter()?.collect();
            let taken: Vec<_> = steps(items.len(), start, stop, step).map(|i| items[i].clone()).collect();
            Ok(if value.is_tuple() { Value::from(Tuple::from(taken)) } else { Value::from(taken) })
        }
        other => Err(invalid(format!("value of type {other} cannot be sliced"))),
    }
}

/// Evaluates Python's `text % value`. If `value` is a tuple, each item of the tuple replaces one
/// placeholder of the text.
pub fn percent(state: &mut State, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (argument,): (Value,) = from_args(args)?;
    let mut all = vec![value.clone()];
    if argument.is_tuple() {
        all.extend(argument.try_iter()?);
    } else {
        all.push(argument);
    }
    state.apply_filter("format", &all)
}

/// Jinja's `format`, which evaluates Python's `text % values`.
pub fn format(budget: Budget, text: &str, values: Rest<Value>, named: &Kwargs) -> Result<String, Error> {
    let mut values = values.0;
    let names: Vec<_> = named.args().collect();
    match (values.as_slice(), names.as_slice()) {
        (_, []) => {}
        ([], names) => {
            let pairs = names.iter().map(|name| Ok((*name, named.get::<Value>(name)?)));
            values.push(Value::from_pairs(pairs.collect::<Result<Vec<_>, Error>>()?));
        }
        _ => return Err(invalid("`format` has values with names and without, expected either")),
    }
    budget.check_format(text, &values)?;
    let text = with_reprs(text, &mut values)?;
    formatting::format(FormatStyle::Printf, &text, &values)
}

/// Replaces each `%r` and `%a` in a format string by `%s`, because minijinja does not support `%r`
/// and `%a`. The function also replaces the value of the placeholder by the text that Python's
/// `repr` or `ascii` returns for the value.
fn with_reprs(format: &str, values: &mut [Value]) -> Result<String, Error> {
    let mut out = String::with_capacity(format.len());
    let mut index = 0;
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        // A key in brackets names a value of a dictionary. The function does not change such
        // values.
        let is_keyed = after.starts_with('(');
        let settings = after.find(|c: char| !"#0- +.123456789hlL".contains(c)).unwrap_or(after.len());
        let (settings, conversion) = after.split_at(settings);
        let mut conversion = conversion.chars();
        let kind = conversion.next();
        out.extend([before, "%", settings]);
        match (kind, values.get_mut(index)) {
            (Some('*'), _) => return Err(invalid("a width among the values, `*`, is not supported")),
            (Some(kind @ ('r' | 'a')), Some(value)) => {
                *value = Value::from(repr_json::repr(value, kind == 'a')?);
                out.push('s');
            }
            (kind, _) => out.extend(kind),
        }
        index += usize::from(!is_keyed && kind != Some('%'));
        rest = conversion.as_str();
    }
    // An unused value is an error, unless the only value is a list or a dictionary.
    match values {
        [one] if collection_methods::is_dict(one) || collection_methods::is_list(one) => Ok(out + rest),
        _ if index < values.len() => Err(invalid("not all arguments converted during string formatting")),
        _ => Ok(out + rest),
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

/// Jinja's test `divisibleby`. minijinja 3.0.5 panics at a division by 0, and at a division of the
/// smallest integer by −1.
pub fn is_divisible(value: &Value, by: &Value) -> Result<bool, Error> {
    match i128::try_from(by.clone()) {
        Ok(0) => Err(invalid("division by zero")),
        Ok(-1) => Ok(is_divisibleby(value, &Value::from(1))),
        _ => Ok(is_divisibleby(value, by)),
    }
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
        return Ok(Value::from(text.chars().rev().collect::<String>()));
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
pub fn escape(budget: Budget, value: &Value) -> Result<Value, Error> {
    if value.is_safe() { Ok(value.clone()) } else { force_escape(budget, value) }
}

pub fn force_escape(budget: Budget, value: &Value) -> Result<Value, Error> {
    let mut text = repr_json::str(value)?.into_owned();
    // The ampersand comes first, because the other escaped texts contain an ampersand.
    for (c, escaped) in [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&#39;"), ("\"", "&#34;")] {
        budget.check_replace(&text, c, escaped)?;
        text = text.replace(c, escaped);
    }
    Ok(Value::from_safe_string(text))
}

/// Jinja's filter `string`, which converts a value to a string.
pub fn string(budget: Budget, value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.clone()),
        _ => Ok(Value::from(repr_json::str(&budget.bounded(value.clone())?)?)),
    }
}

/// Jinja's filter `replace`. If the caller does not pass the argument `count`, the function calls
/// minijinja's filter `replace`.
pub fn replace(budget: Budget, state: &mut State, all: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let (text, from, to, count, options): (&Value, Option<Value>, Option<Value>, Option<i64>, Kwargs) =
        from_args(arguments)?;
    let given = |given: Option<Value>, name| given.map_or_else(|| options.get(name), Ok);
    let (from, to) = (given(from, "old")?, given(to, "new")?);
    let count = count.or(options.get("count")?);
    options.assert_all_used()?;
    let (text, old, new) = (budget::as_text(text)?, budget::as_text(&from)?, budget::as_text(&to)?);
    budget.check_replace(&text, &old, &new)?;
    match count.and_then(|count| usize::try_from(count).ok()) {
        Some(_) if *state.auto_escape() != AutoEscape::None => {
            Err(invalid("`replace` with a count is not supported where texts are escaped"))
        }
        Some(count) => Ok(Value::from(text.replacen(&*old, &new, count))),
        None => all.call(state, &[arguments[0].clone(), from, to]),
    }
}

/// Jinja's filter `map`, which returns an attribute of each item, or the result of a filter for
/// each item. The filter `map` of minijinja finds attributes, but does not pass named arguments to
/// filters.
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

pub fn capitalize(value: &Value) -> Result<String, Error> {
    Ok(str_methods::capitalize(&repr_json::str(value)?))
}

pub fn trim(value: &Value, chars: Option<&str>) -> Result<String, Error> {
    Ok(str_methods::strip(&repr_json::str(value)?, chars).to_owned())
}

/// Jinja's filter `int`, which returns `default` for a value that is not a number.
pub fn int(value: &Value, default: Value, base: Option<u32>) -> Result<Value, Error> {
    let number = match value.kind() {
        ValueKind::Bool => return Ok(Value::from(i64::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => return Ok(value.clone()),
        ValueKind::Number => Some(f64::try_from(value.clone())?),
        ValueKind::String => {
            let text = number_text(value.as_str().unwrap_or_default())?;
            if let Some(whole) = whole_number(text, base.unwrap_or(10))? {
                return Ok(Value::from(whole));
            }
            // If the text is an infinite number, the filter returns the default.
            real_number(text).filter(|number| number.is_finite())
        }
        ValueKind::Undefined => return Err(Error::from(ErrorKind::UndefinedError)),
        _ => None,
    };
    match number {
        Some(number) if number.abs() < i128::MAX as f64 => Ok(Value::from(number as i128)),
        Some(number) if !number.is_nan() => Err(invalid(format!("{number:e} is too large for an integer"))),
        _ if default.is_undefined() => Ok(Value::from(0)),
        _ => Ok(default),
    }
}

/// Jinja's filter `float`, which returns `default` for a value that is not a number.
pub fn float(value: &Value, default: Value) -> Result<Value, Error> {
    let number = match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => Some(f64::try_from(value.clone())?),
        ValueKind::String => real_number(number_text(value.as_str().unwrap_or_default())?),
        ValueKind::Undefined => return Err(Error::from(ErrorKind::UndefinedError)),
        _ => None,
    };
    let default = if default.is_undefined() { Value::from(0.0) } else { default };
    Ok(number.map_or(default, Value::from))
}

/// Removes white space at the two ends of a text, to parse the text as a number. Digits outside of
/// ASCII are an error, because this crate does not contain Python's tables of such digits.
fn number_text(text: &str) -> Result<&str, Error> {
    let text = str_methods::strip(text, None);
    match text.is_ascii() {
        true => Ok(text),
        false => Err(invalid("a text that is no ASCII is not read as a number")),
    }
}

/// Removes the underscores between digits. Returns `None` if an underscore is not between two
/// digits.
fn digits(text: &str, is_digit: impl Fn(char) -> bool) -> Option<String> {
    let parts: Vec<_> = text.split('_').collect();
    let stands_between = |pair: &[&str]| pair[0].ends_with(&is_digit) && pair[1].starts_with(&is_digit);
    parts.windows(2).all(stands_between).then(|| parts.concat())
}

/// Python's `int(text, base)`. Returns `None` if the text is not an integer.
fn whole_number(text: &str, base: u32) -> Result<Option<i128>, Error> {
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
    let too_large = |_| invalid(format!("`{text:.40}` is too large for an integer"));
    i128::from_str_radix(&format!("{sign}{digits}"), base).map(Some).map_err(too_large)
}

/// Python's `float(text)`. Returns `None` if the text is not a number.
fn real_number(text: &str) -> Option<f64> {
    digits(text, |c| c.is_ascii_digit())?.parse().ok()
}

pub fn center(value: &Value, width: Option<i64>) -> Result<Value, Error> {
    str_methods::center(&repr_json::str(value)?, width.unwrap_or(80))
}

/// Jinja's filter `indent`, which indents the lines of a text. The filter `indent` keeps a line end
/// at the end of the text.
pub fn indent(
    text: &str,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
) -> Result<String, Error> {
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
    Ok(lines.join("\n"))
}

pub fn truncate(
    text: &str,
    length: Option<usize>,
    killwords: Option<bool>,
    end: Option<&str>,
    leeway: Option<usize>,
) -> String {
    let (length, end) = (length.unwrap_or(255), end.unwrap_or("..."));
    if text.chars().count() <= length.saturating_add(leeway.unwrap_or(5)) {
        return text.to_string();
    }
    let kept: String = text.chars().take(length.saturating_sub(end.chars().count())).collect();
    let kept = match killwords.unwrap_or(false) {
        true => &kept,
        false => kept.rsplit_once(' ').map_or(kept.as_str(), |(words, _)| words),
    };
    format!("{kept}{end}")
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
