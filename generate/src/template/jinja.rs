//! What Jinja has and the engine has not, or not as Jinja has it.

use minijinja::formatting::{self, FormatStyle};
use minijinja::tests::is_divisibleby;
use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use super::room::{blanks, check_format};

/// Python's `value[start:stop:step]` on strings and lists.
pub fn slice(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (start, stop, step): (Option<i64>, Option<i64>, Option<i64>) = from_args(args)?;
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "slice step cannot be zero"));
    }
    match value.kind() {
        ValueKind::String => {
            let text: Vec<char> = value.as_str().unwrap_or_default().chars().collect();
            Ok(Value::from(steps(text.len(), start, stop, step).map(|i| text[i]).collect::<String>()))
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            Ok(Value::from(
                steps(items.len(), start, stop, step).map(|i| items[i].clone()).collect::<Vec<_>>(),
            ))
        }
        other => {
            Err(Error::new(ErrorKind::InvalidOperation, format!("value of type {other} cannot be sliced")))
        }
    }
}

/// Python's `text % value`, where a tuple is several values.
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

/// Jinja's `format`, Python's `text % values`.
pub fn format(text: &str, values: Rest<Value>) -> Result<String, Error> {
    check_format(text, &values)?;
    formatting::format(FormatStyle::Printf, text, &values)
}

/// The test `divisibleby`: minijinja 3.0.5 panics where it divides by 0, and where the smallest integer is divided by −1.
pub fn is_divisible(value: &Value, by: &Value) -> Result<bool, Error> {
    match i128::try_from(by.clone()) {
        Ok(0) => Err(Error::new(ErrorKind::InvalidOperation, "division by zero")),
        Ok(-1) => Ok(is_divisibleby(value, &Value::from(1))),
        _ => Ok(is_divisibleby(value, by)),
    }
}

/// Jinja's `center`.
pub fn center(text: &str, width: Option<usize>) -> Result<String, Error> {
    let width = width.unwrap_or(80);
    let missing = width.saturating_sub(text.chars().count());
    let left = missing / 2 + (missing & width & 1);
    Ok(format!("{}{text}{}", blanks(left)?, blanks(missing - left)?))
}

/// Where Python's `splitlines` splits, besides `\r\n`.
const LINE_ENDS: [char; 10] =
    ['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'];

/// Jinja's `indent`, which keeps a last line end.
pub fn indent(
    text: &str,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let width = width.or(options.get("width")?).unwrap_or(Value::from(4));
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
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
    lines.pop(); // what follows the line end that we put there
    Ok(lines.join("\n"))
}

/// Jinja's `truncate`.
pub fn truncate(
    text: &str,
    length: Option<usize>,
    killwords: Option<bool>,
    end: Option<String>,
    options: Kwargs,
) -> Result<String, Error> {
    let length = length.or(options.get("length")?).unwrap_or(255);
    let killwords = killwords.or(options.get("killwords")?).unwrap_or(false);
    let end = end.or(options.get("end")?).unwrap_or("...".to_string());
    let leeway = options.get::<Option<usize>>("leeway")?.unwrap_or(5);
    options.assert_all_used()?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text.to_string());
    }
    let kept: String = text.chars().take(length.saturating_sub(end.chars().count())).collect();
    let kept =
        if killwords { &kept } else { kept.rsplit_once(' ').map_or(kept.as_str(), |(words, _)| words) };
    Ok(format!("{kept}{end}"))
}

/// Jinja's `wordcount`.
pub fn wordcount(text: &str) -> usize {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).count()
}

/// The indices that Python's slice takes of `len` items.
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
