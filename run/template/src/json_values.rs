//! Converts JSON to the values that Python's `json.loads` returns.

use files::exact_number;
use minijinja::{Error, Value};
use serde_json::{Map, Value as Json};

use crate::{invalid, numbers};

pub fn value(json: &Json) -> Result<Value, Error> {
    Ok(match json {
        Json::Null => Value::from(()),
        Json::Bool(is) => Value::from(*is),
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::from(items.iter().map(value).collect::<Result<Vec<_>, _>>()?),
        Json::Object(map) => match exact_number(json) {
            Some(text) => number(text)?,
            None => object(map)?,
        },
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), ..) => Value::from(number),
            (None, Some(number), _) => Value::from(number),
            (None, None, Some(number)) => Value::from(number),
            (None, None, None) => self::number(&number.to_string())?,
        },
    })
}

pub fn object(map: &Map<String, Json>) -> Result<Value, Error> {
    let pairs = map.iter().map(|(key, item)| Ok((key.as_str(), value(item)?)));
    Ok(Value::from_pairs(pairs.collect::<Result<Vec<_>, Error>>()?))
}

fn number(text: &str) -> Result<Value, Error> {
    let number = numbers::of_json(text);
    let found =
        || invalid(format!("an integer has {} digits, expected at most {}", text.len(), numbers::DIGITS));
    number.map(numbers::PythonNumber::value).ok_or_else(found)
}
