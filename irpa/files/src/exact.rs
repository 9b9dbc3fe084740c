//! Keeps JSON numbers that Rust's number types cannot hold. Python's `json` module reads integers
//! of any size, and reads `1e400` as an infinite float.

use std::borrow::Cow;
use std::ops::Range;

use serde::de::DeserializeOwned;
use serde::ser::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// serde_json's own key for numbers with the feature `arbitrary_precision`.
const KEY: &str = "$serde_json::private::Number";

/// Parses JSON like `serde_json::from_str`, but keeps the text of each number that is no `i64`, no
/// `u64` and no finite `f64`. [`exact_number`] returns this text. As in Python, `-0` is the integer 0.
pub fn parse_exact<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    let kept = with_exact_numbers(text);
    serde_json::from_str(&kept).map_err(|moved| {
        // A number of the same length keeps the positions of all other characters.
        let padded = replaced(text, &special_numbers(text), |number| format!("{:<1$}", 0, number.len()));
        serde_json::from_str::<T>(&padded).err().unwrap_or(moved)
    })
}

/// Replaces the numbers that [`parse_exact`] keeps by the objects that keep them.
pub fn with_exact_numbers(text: &str) -> Cow<'_, str> {
    let numbers = special_numbers(text);
    if numbers.is_empty() {
        return text.into();
    }
    let kept =
        |number: &str| if number == "-0" { "0".to_owned() } else { format!("{{\"{KEY}\":\"{number}\"}}") };
    replaced(text, &numbers, kept).into()
}

pub fn exact_number(value: &Value) -> Option<&str> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    let text = object.get(KEY)?.as_str()?;
    (number_len(text) == text.len() && !text.is_empty()).then_some(text)
}

/// Formats JSON like `Value::to_string`, with the text of each number that [`parse_exact`] kept.
pub fn exact_json(value: &Value) -> String {
    // serde_json writes every `Value`, and every map has strings as keys.
    serde_json::to_string(&Exact(value)).unwrap_or_else(|_| value.to_string())
}

struct Exact<'a>(&'a Value);

impl Serialize for Exact<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self(value) = self;
        if let Some(number) = exact_number(value) {
            let number = RawValue::from_string(number.to_owned()).map_err(serde::ser::Error::custom)?;
            return number.serialize(to);
        }
        match value {
            Value::Array(items) => to.collect_seq(items.iter().map(Exact)),
            Value::Object(object) => to.collect_map(object.iter().map(|(key, value)| (key, Exact(value)))),
            other => other.serialize(to),
        }
    }
}

/// Finds the numbers that serde_json would change, but not inside strings.
fn special_numbers(text: &str) -> Vec<Range<usize>> {
    let (bytes, mut found, mut at) = (text.as_bytes(), Vec::new(), 0);
    while let Some(byte) = bytes.get(at) {
        at += match byte {
            b'"' => string_len(&bytes[at..]),
            b'-' | b'0'..=b'9' => {
                let len = number_len(&text[at..]);
                if is_special(&text[at..at + len]) {
                    found.push(at..at + len);
                }
                // A text that is no number is an error, which serde_json finds.
                len.max(1)
            }
            _ => 1,
        };
    }
    found
}

fn string_len(bytes: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// 0 if the text does not begin with a number.
fn number_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits = |from: usize| {
        from + bytes.get(from..).unwrap_or_default().iter().take_while(|byte| byte.is_ascii_digit()).count()
    };
    let start = usize::from(bytes.first() == Some(&b'-'));
    let mut end = if bytes.get(start) == Some(&b'0') { start + 1 } else { digits(start) };
    if end == start {
        return 0;
    }
    if bytes.get(end) == Some(&b'.') && digits(end + 1) > end + 1 {
        end = digits(end + 1);
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        if digits(end + 1 + sign) > end + 1 + sign {
            end = digits(end + 1 + sign);
        }
    }
    end
}

fn is_special(number: &str) -> bool {
    match number.contains(['.', 'e', 'E']) {
        true => number.parse::<f64>().is_ok_and(f64::is_infinite),
        false if number == "-0" => true,
        // Shorter numbers fit into an `i64`.
        false => number.len() > 18 && number.parse::<i64>().is_err() && number.parse::<u64>().is_err(),
    }
}

fn replaced(text: &str, numbers: &[Range<usize>], by: impl Fn(&str) -> String) -> String {
    let (mut out, mut end) = (String::with_capacity(text.len() + 64 * numbers.len()), 0);
    for number in numbers {
        out.push_str(&text[end..number.start]);
        out.push_str(&by(&text[number.clone()]));
        end = number.end;
    }
    out + &text[end..]
}

/// Formats a float like Python's `repr`, with the fewest digits that give the same float.
pub fn python_float(number: f64) -> String {
    if !number.is_finite() {
        let infinity = if number > 0.0 { "inf" } else { "-inf" };
        return if number.is_nan() { "nan" } else { infinity }.to_owned();
    }
    // Two texts with the fewest digits can be equally near. Python takes the text with the even
    // digit, as Rust does for a given number of digits.
    let shortest = format!("{number:e}");
    let digits = shortest.bytes().take_while(|c| *c != b'e').filter(u8::is_ascii_digit).count();
    let even = format!("{number:.*e}", digits - 1);
    let even = Some(even).filter(|even| even.parse() == Ok(number)).unwrap_or(shortest);
    let (digits, exponent) = even.split_once('e').unwrap_or((&even, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, digits) = digits.split_at(usize::from(digits.starts_with('-')));
    match exponent {
        -4..16 => {
            let digits = digits.replace('.', "");
            let point = usize::try_from(exponent + 1).unwrap_or(0);
            let zeros = "0".repeat(usize::try_from(-exponent).unwrap_or(0));
            let digits = format!("{zeros}{digits:0<point$}");
            let (whole, fraction) = digits.split_at(point.max(1));
            let fraction = if fraction.is_empty() { "0" } else { fraction };
            format!("{sign}{whole}.{fraction}")
        }
        _ => {
            let mark = if exponent < 0 { '-' } else { '+' };
            format!("{sign}{digits}e{mark}{:02}", exponent.abs())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_texts() {
        for text in [
            "[18446744073709551615,-9223372036854775808,18446744073709551616,-9223372036854775809]",
            r#"{"a":[123456789012345678901234567890,{"b":1e400}],"c":-1E+999,"d\"1e400":"1e400"}"#,
            "53.630839129292724",
            "[5e-324,1.7976931348623157e+308,-0.0,0,1]",
        ] {
            assert_eq!(exact_json(&parse_exact(text).unwrap()), text, "{text}");
        }
        assert_eq!(exact_json(&parse_exact("[-0, 1]").unwrap()), "[0,1]");
        let number: Value = parse_exact(" 123456789012345678901 ").unwrap();
        assert_eq!(exact_number(&number), Some("123456789012345678901"));
        for other in
            [r#"{"$serde_json::private::Number":"a"}"#, r#"{"$serde_json::private::Number":""}"#, "1", "{}"]
        {
            let other: Value = serde_json::from_str(other).unwrap();
            assert_eq!(exact_number(&other), None, "{other}");
            assert_eq!(exact_json(&other), other.to_string());
        }
    }

    #[test]
    fn errors_are_where_they_are_in_the_text() {
        for (text, column) in
            [("[1e400, ?]", 9), ("[123456789012345678901 1]", 24), ("[-0, 01]", 7), ("[1e400.]", 7)]
        {
            let error = parse_exact::<Value>(text).unwrap_err();
            assert_eq!((error.line(), error.column()), (1, column), "{text}: {error}");
        }
    }
}
