//! Reads JSON as Python's `json` module writes it. `json.dumps` and `json.loads` support three numbers that
//! JSON cannot express: `Infinity`, `-Infinity`, `NaN`.

use std::borrow::Cow;
use std::ops::Range;

use serde::de::DeserializeOwned;

/// The words that Python's `json` module writes for numbers that are not finite.
const NOT_FINITE: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Returns the JSON object that replaces `Infinity`, `-Infinity` or `NaN`. Hugging Face transformers 5 also
/// writes this object for a number that is not finite (`PreTrainedConfig._encode_special_floats`). A parser
/// that expects a number or a string rejects the object that replaces `Infinity`.
fn not_finite(word: &str) -> String {
    format!("{{\"__float__\":\"{word}\"}}")
}

/// As Python does, with `Infinity`, `-Infinity` or `NaN`.
pub fn as_written(value: &str) -> String {
    NOT_FINITE.iter().fold(value.to_owned(), |text, word| text.replace(&not_finite(word), word))
}

/// Numbers that are not finite become objects such as `{"__float__": "Infinity"}`, as in Hugging Face
/// transformers 5.
pub fn parse_json<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    with_json(text, |text| serde_json::from_str(text))
}

/// Runs a parser on JSON that Python may have written. If `text` contains `Infinity`, `-Infinity` or `NaN`,
/// `parse` gets a text in which objects replace these words. If `parse` fails, the function calls `parse`
/// again with a text of the original length, to find the position of the error.
pub fn with_json<T>(text: &str, parse: impl Fn(&str) -> serde_json::Result<T>) -> serde_json::Result<T> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let words = words(text);
    if words.is_empty() {
        return parse(text);
    }
    parse(&replaced(text, &words, |word| not_finite(word).into())).map_err(|moved| {
        // A string of the same length as the word keeps the positions of all other characters.
        let padded = replaced(text, &words, |word| format!("\"{}\"", &word[..word.len() - 2]).into());
        parse(&padded).err().unwrap_or(moved)
    })
}

/// Finds `Infinity`, `-Infinity` and `NaN` in a JSON text, but not inside strings.
fn words(text: &str) -> Vec<Range<usize>> {
    if !text.contains("Infinity") && !text.contains("NaN") {
        return Vec::new();
    }
    let (bytes, mut words, mut at, mut in_string) = (text.as_bytes(), Vec::new(), 0, false);
    while at < bytes.len() {
        let word = NOT_FINITE.iter().find(|word| !in_string && bytes[at..].starts_with(word.as_bytes()));
        at += match (bytes[at], word) {
            (_, Some(word)) => {
                words.push(at..at + word.len());
                word.len()
            }
            (b'\\', _) if in_string => 2,
            (b'"', _) => {
                in_string = !in_string;
                1
            }
            _ => 1,
        };
    }
    words
}

fn replaced(text: &str, words: &[Range<usize>], by: impl Fn(&str) -> Cow<'static, str>) -> String {
    let (mut out, mut end) = (String::with_capacity(text.len() + 16 * words.len()), 0);
    for word in words {
        out.push_str(&text[end..word.start]);
        out.push_str(&by(&text[word.clone()]));
        end = word.end;
    }
    out + &text[end..]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn number(word: &str) -> Value {
        json!({ "__float__": word })
    }

    /// Checks texts that Python's `json.dumps` writes for numbers that are not finite.
    #[test]
    fn numbers_that_are_not_finite_are_read() {
        let cases = [
            ("Infinity", number("Infinity")),
            ("[0.0, Infinity]", json!([0.0, number("Infinity")])),
            ("[-Infinity,NaN]", json!([number("-Infinity"), number("NaN")])),
            (r#"{"a": NaN, "b": -1}"#, json!({ "a": number("NaN"), "b": -1 })),
            (
                r#"{"Infinity": "NaN", "b": -Infinity}"#,
                json!({ "Infinity": "NaN", "b": number("-Infinity") }),
            ),
            (
                r#"["a\" NaN \\", NaN, "é\\\" Infinity"]"#,
                json!(["a\" NaN \\", number("NaN"), "é\\\" Infinity"]),
            ),
            (r#"{"__float__": "Infinity"}"#, number("Infinity")),
            ("[1, 2]", json!([1, 2])),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_json::<Value>(text).unwrap(), expected, "{text}");
        }
    }

    /// Checks that the parser rejects texts that Python's `json.loads` also rejects. Each error must have the
    /// same position as in a text with a finite number instead of `Infinity` or `NaN`.
    #[test]
    fn errors_are_where_they_are_in_the_file() {
        let cases = [
            ("[NaN, NaN, ?]", 1, 12),
            ("{\"a\": [0, Infinity],\n \"b\": [-Infinity, NaN], \"c\" 1}", 2, 29),
            ("[NaN", 1, 4),
            ("{NaN: 1}", 1, 2),
            ("[-NaN]", 1, 3),
            ("[NaNNaN]", 1, 5),
            ("[1, infinity, nan]", 1, 5),
        ];
        for (text, line, column) in cases {
            let error = parse_json::<Value>(text).unwrap_err();
            assert_eq!((error.line(), error.column()), (line, column), "{text}: {error}");
        }
    }
}
