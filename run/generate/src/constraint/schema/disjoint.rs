//! Decides whether the branches of `oneOf` can overlap.

use serde_json::{Map, Value};

use super::numbers::{self, Decimal};
use super::{Place, Preparer, keywords};

/// The deepest comparison of two schemas, in references and nested schemas.
const DEEPEST: usize = 6;

impl<'a> Preparer<'a> {
    /// Whether no value matches two of the schemas. False if this cannot be decided.
    pub fn are_disjoint(&self, list: &'a Value, place: &Place<'a>) -> bool {
        let list = list.as_array().map_or(&[][..], Vec::as_slice);
        list.iter().enumerate().all(|(index, one)| {
            list[index + 1..].iter().all(|other| self.excludes((one, place), (other, place), 0))
        })
    }

    fn excludes(&self, one: (&'a Value, &Place<'a>), other: (&'a Value, &Place<'a>), depth: usize) -> bool {
        if depth > DEEPEST || !self.has_fuel() {
            return false;
        }
        let (Value::Object(left), Value::Object(right)) = (one.0, other.0) else {
            return one.0 == &Value::Bool(false) || other.0 == &Value::Bool(false);
        };
        self.parts_exclude(left, one.1, other, depth)
            || self.parts_exclude(right, other.1, one, depth)
            || self.are_apart((left, one.1), (right, other.1), depth)
    }

    /// Whether a part that every value of `from` matches excludes the other schema.
    fn parts_exclude(
        &self,
        from: &'a Map<String, Value>,
        place: &Place<'a>,
        other: (&'a Value, &Place<'a>),
        depth: usize,
    ) -> bool {
        let list = |key| from.get(key).and_then(Value::as_array).filter(|list| !list.is_empty());
        let target = from.get("$ref").and_then(|value| self.resolve(value, place).ok());
        let excludes = |value: &'a Value| self.excludes((value, place), other, depth + 1);
        target.is_some_and(|(value, place)| self.excludes((value, &place), other, depth + 1))
            || list("allOf").is_some_and(|list| list.iter().any(excludes))
            || list("anyOf").is_some_and(|list| list.iter().all(excludes))
            || list("oneOf").is_some_and(|list| list.iter().all(excludes))
    }

    fn are_apart(
        &self,
        (left, left_place): (&'a Map<String, Value>, &Place<'a>),
        (right, right_place): (&'a Map<String, Value>, &Place<'a>),
        depth: usize,
    ) -> bool {
        let (types, others) = (types(left), types(right));
        let is_same = |one: &str, other: &str| {
            one == other || [one, other] == ["number", "integer"] || [one, other] == ["integer", "number"]
        };
        if !types.iter().any(|one| others.iter().any(|other| is_same(one, other))) {
            return true;
        }
        if let (Some(values), Some(others)) = (values(left), values(right)) {
            if values.len().saturating_mul(others.len()) > 100_000 {
                return false;
            }
            let is_shared = |one: &&Value| others.iter().any(|other| self.are_equal(one, other));
            return !values.iter().any(is_shared);
        }
        let is_object = |types: &[&str]| types == ["object"];
        if !is_object(&types) || !is_object(&others) {
            return false;
        }
        let property = |from: &'a Map<String, Value>, name: &str| from.get("properties")?.get(name);
        let is_closed = |from: &Map<String, Value>| {
            from.get("additionalProperties") == Some(&Value::Bool(false))
                && !from.contains_key("patternProperties")
        };
        let mut required = names(left).chain(names(right));
        required.any(|name| match (property(left, name), property(right, name)) {
            (Some(one), Some(other)) => self.excludes((one, left_place), (other, right_place), depth + 1),
            // A branch that requires a property excludes a branch that forbids it.
            (None, Some(_)) => is_closed(left),
            (Some(_), None) => is_closed(right),
            (None, None) => false,
        })
    }

    /// Numbers with different texts can be equal.
    fn are_equal(&self, one: &Value, other: &Value) -> bool {
        let number = |value| numbers::text(value, self.mark).and_then(|text| Decimal::parse(&text));
        one == other || number(one).is_some_and(|one| number(other) == Some(one))
    }
}

fn names(from: &Map<String, Value>) -> impl Iterator<Item = &str> {
    from.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn types(from: &Map<String, Value>) -> Vec<&str> {
    let listed = match from.get("type") {
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        Some(value) => value.as_str().into_iter().collect(),
        None => Vec::new(),
    };
    if listed.is_empty() { keywords::ALL.to_vec() } else { listed }
}

fn values(from: &Map<String, Value>) -> Option<Vec<&Value>> {
    match (from.get("const"), from.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(value)) => Some(value.as_array()?.iter().collect()),
        _ => None,
    }
}
