//! Refuses numbers in schemas with which llguidance computes wrongly.

use serde_json::{Deserializer, Value};

/// The keywords whose numbers llguidance converts to 64-bit integers.
const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];

/// The smallest number that llguidance can negate is above this number, because llguidance rounds
/// numbers to 64 bits and stores them as `i64`.
const LOWEST: f64 = i64::MIN as f64;

/// Checks the numbers of a schema. llguidance negates the bounds of integers as `i64`. The negation of
/// `i64::MIN` overflows, and llguidance then recurses without end.
pub fn check(schema: &Value) -> Result<(), String> {
    match schema {
        Value::Array(schemas) => schemas.iter().try_for_each(check),
        Value::Object(keys) => keys.iter().try_for_each(|(key, value)| match key.as_str() {
            "const" | "enum" => deep(key, value),
            name if value.is_number() && BOUNDS.contains(&name) => deep(name, value),
            _ => check(value),
        }),
        _ => Ok(()),
    }
}

/// Checks the numbers of the schemas behind `%json` in a grammar.
pub fn check_in_grammar(grammar: &str) -> Result<(), String> {
    grammar.match_indices("%json").try_for_each(|(at, word)| {
        let mut values = Deserializer::from_str(&grammar[at + word.len()..]).into_iter();
        match values.next() {
            Some(Ok(schema)) => check(&schema),
            // llguidance reports the error.
            _ => Ok(()),
        }
    })
}

/// Checks all numbers of a value.
fn deep(keyword: &str, value: &Value) -> Result<(), String> {
    match value {
        Value::Number(number) if number.as_f64().is_some_and(|number| number <= LOWEST) => {
            let least = "-9223372036854774784";
            Err(format!("`{keyword}` has the number {number}, expected a number of at least {least}"))
        }
        Value::Array(values) => values.iter().try_for_each(|value| deep(keyword, value)),
        Value::Object(values) => values.values().try_for_each(|value| deep(keyword, value)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_cannot_be_negated_are_refused() {
        for (schema, refused) in [
            (r#"{"const": -9223372036854775808}"#, true),
            // As f64, this number is equal to -2^63.
            (r#"{"const": -9223372036854775807}"#, true),
            (r#"{"const": -9223372036854774784}"#, false),
            (r#"{"enum": [1, {"a": [-9223372036854775808]}]}"#, true),
            (r#"{"type": "integer", "minimum": -1e300}"#, true),
            (r#"{"type": "integer", "exclusiveMaximum": -9223372036854775808}"#, true),
            (r#"{"properties": {"a": {"items": {"maximum": -1e19}}}}"#, true),
            (r#"{"properties": {"minimum": {"default": -1e19}}}"#, false),
            (r#"{"maximum": 9223372036854775807, "const": 9223372036854775807}"#, false),
            ("true", false),
        ] {
            let value = serde_json::from_str(schema).unwrap();
            assert_eq!(check(&value).is_err(), refused, "{schema}");
            let grammar = format!("start: a\n# %json {{\na: \"x\" %json {schema}\nb: %json {{}}");
            assert_eq!(check_in_grammar(&grammar).is_err(), refused, "{grammar}");
        }
    }
}
