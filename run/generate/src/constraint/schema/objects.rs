//! Rewrites the keywords of objects that llguidance does not have.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::keywords::Draft;
use super::{Place, Preparer, SchemaError};
use crate::schema_error::OPTIONAL;

/// The most keys of `dependentRequired` and its like: each key doubles the alternatives.
const CONDITIONS: usize = 6;

/// The names that a schema of names allows.
enum Names {
    All,
    /// The names in a list.
    Some(Vec<String>),
    /// The names that match a regular expression anywhere.
    Matching(String),
}

impl<'a> Preparer<'a> {
    /// Rewrites `propertyNames`, the keywords about dependent properties, and `unevaluatedProperties`.
    pub fn object_keywords(
        &mut self,
        from: &'a Map<String, Value>,
        place: &Place<'a>,
        draft: &mut Draft,
    ) -> Result<(), SchemaError> {
        if let Some(names) = from.get("propertyNames") {
            let place = place.to("propertyNames");
            let names = self.property_names(names, &place, 0)?;
            self.name_properties(names, &place, &mut draft.out)?;
        }
        let mut conditions = 0;
        for key in ["dependencies", "dependentRequired", "dependentSchemas"] {
            let Some(value) = from.get(key) else { continue };
            let Some(object) = value.as_object() else {
                return Err(self.wrong(value, &place.to(key), "an object of property names"));
            };
            conditions += object.len();
            if conditions > CONDITIONS {
                let help = "list the allowed combinations of properties in `anyOf`";
                return Err(place.to(key).unsupported(key, help));
            }
            for (name, then) in object {
                let place = place.to(key).to(name);
                let then = match then {
                    Value::Array(_) => json!({ "required": self.names(then, &place)? }),
                    then => self.schema(then, &place)?,
                };
                let without = json!({ "properties": { name: false } });
                let with = json!({ "allOf": [{ "required": [name] }, then] });
                draft.also.push(json!({ "anyOf": [without, with] }));
            }
        }
        self.check_counts(from, place, &draft.out)?;
        self.unevaluated_properties(from, place, draft)
    }

    /// Refuses counts of properties that llguidance cannot check: it counts only properties without a name.
    fn check_counts(
        &self,
        from: &Map<String, Value>,
        place: &Place<'_>,
        out: &Map<String, Value>,
    ) -> Result<(), SchemaError> {
        let required = out.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let count = |key| out.get(key).and_then(Value::as_u64);
        let least = count("minProperties").unwrap_or_default().saturating_sub(required.len() as u64);
        let most = count("maxProperties");
        let named = out.get("properties").and_then(Value::as_object).into_iter().flatten();
        let names: HashSet<&str> = required.iter().filter_map(Value::as_str).collect();
        let optional = named.filter(|(name, _)| !names.contains(name.as_str())).count();
        if optional > OPTIONAL {
            return Err(SchemaError::OptionalProperties { at: place.to("properties").at, found: optional });
        }
        let is_closed = out.get("additionalProperties") == Some(&Value::Bool(false));
        let is_one = least <= 1 && most.is_none_or(|most| most == 1 + required.len() as u64);
        let is_counted = is_one && is_closed && !out.contains_key("patternProperties");
        if (least == 0 && most.is_none()) || is_counted || optional == 0 {
            return Ok(());
        }
        let keyword = if from.contains_key("minProperties") { "minProperties" } else { "maxProperties" };
        let help = "list the properties that the answer must have in `required`";
        Err(place.to(keyword).unsupported(keyword, help))
    }

    fn property_names(
        &self,
        value: &'a Value,
        place: &Place<'a>,
        depth: usize,
    ) -> Result<Names, SchemaError> {
        let unsupported = || {
            let help = "describe the names with `pattern`, `enum`, `minLength` and `maxLength`, or use \
                `patternProperties`";
            place.unsupported("propertyNames", help)
        };
        let object = match value {
            Value::Object(object) => object,
            Value::Bool(true) => return Ok(Names::All),
            Value::Bool(false) => return Ok(Names::Some(Vec::new())),
            _ => return Err(self.wrong(value, place, "a schema for the names of properties")),
        };
        if let Some(reference) = object.get("$ref") {
            let (target, place) = self.resolve(reference, &place.to("$ref"))?;
            return if depth < 8 {
                self.property_names(target, &place, depth + 1)
            } else {
                Err(unsupported())
            };
        }
        let is_string = |name: &Value| name == "string";
        let kind = object.get("type");
        let allows_text = kind.is_none_or(|kind| {
            is_string(kind) || kind.as_array().is_some_and(|list| list.iter().any(is_string))
        });
        if !allows_text {
            return Ok(Names::Some(Vec::new()));
        }
        let list = object.get("enum").and_then(Value::as_array).cloned();
        if let Some(list) = list.or_else(|| Some(vec![object.get("const")?.clone()])) {
            return Ok(Names::Some(list.iter().filter_map(Value::as_str).map(str::to_owned).collect()));
        }
        let count = |key| -> Result<Option<String>, SchemaError> {
            let count = object.get(key).map(|value| self.count(value, &place.to(key))).transpose()?;
            Ok(count.map(|count| count.to_string()))
        };
        let lengths = (count("minLength")?, count("maxLength")?);
        let pattern = object.get("pattern").and_then(Value::as_str);
        let format = object.get("format").and_then(Value::as_str).and_then(pattern_of_format);
        if ["anyOf", "oneOf", "allOf", "not", "if"].iter().any(|key| object.contains_key(*key)) {
            return Err(unsupported());
        }
        match (pattern, lengths, format) {
            (None, (None, None), None) => Ok(Names::All),
            (None, (None, None), Some(format)) => Ok(Names::Matching(format.to_owned())),
            (Some(pattern), (None, None), None) => Ok(Names::Matching(pattern.to_owned())),
            (None, (least, most), None) => {
                let (least, most) = (least.unwrap_or_else(|| "0".to_owned()), most.unwrap_or_default());
                Ok(Names::Matching(format!("^[\\s\\S]{{{least},{most}}}$")))
            }
            _ => Err(unsupported()),
        }
    }

    /// Allows only properties with these names.
    fn name_properties(
        &self,
        names: Names,
        place: &Place<'_>,
        out: &mut Map<String, Value>,
    ) -> Result<(), SchemaError> {
        let others = out.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
        let has_patterns = out.get("patternProperties").and_then(Value::as_object);
        let has_patterns = has_patterns.is_some_and(|patterns| !patterns.is_empty());
        let unsupported = || {
            let help =
                "repeat the pattern of the names in `patternProperties`, and leave `propertyNames` out";
            place.unsupported("propertyNames", help)
        };
        match names {
            Names::All => return Ok(()),
            _ if has_patterns => return Err(unsupported()),
            Names::Some(names) => {
                let mut properties = match out.remove("properties") {
                    Some(Value::Object(properties)) => properties,
                    _ => Map::new(),
                };
                let all: HashSet<&String> = names.iter().collect();
                let is_named = |name: &String| all.contains(name);
                properties.iter_mut().filter(|(name, _)| !is_named(name)).for_each(|(_, value)| {
                    *value = Value::Bool(false);
                });
                for name in names.iter().filter(|name| !name.is_empty() || others != Value::Bool(false)) {
                    properties.entry(name.clone()).or_insert_with(|| others.clone());
                }
                out.insert("properties".to_owned(), properties.into());
            }
            Names::Matching(pattern) => {
                if let Some(Value::Object(properties)) = out.get("properties")
                    && !properties.keys().all(|name| super::patterns::matches(&pattern, name))
                {
                    return Err(unsupported());
                }
                out.insert("patternProperties".to_owned(), json!({ pattern: others }));
            }
        }
        out.insert("additionalProperties".to_owned(), Value::Bool(false));
        Ok(())
    }

    /// Replaces `unevaluatedProperties` by `additionalProperties`, if all answers evaluate equal keys.
    fn unevaluated_properties(
        &mut self,
        from: &'a Map<String, Value>,
        place: &Place<'a>,
        draft: &mut Draft,
    ) -> Result<(), SchemaError> {
        let key = "unevaluatedProperties";
        let Some(value) = from.get(key).filter(|value| !self.is_any(value)) else { return Ok(()) };
        let rest = self.schema(value, &place.to(key))?;
        let mut names = Evaluated::default();
        if !self.evaluated(from, place, &mut names, 0)? {
            let help = "set `additionalProperties` in the schemas that are combined";
            return Err(place.to(key).unsupported(key, help));
        }
        if !names.is_everything {
            let any = |names: Vec<&'a str>| -> Value {
                names.into_iter().map(|name| (name.to_owned(), Value::Bool(true))).collect()
            };
            draft.also.push(json!({
                "properties": any(names.properties),
                "patternProperties": any(names.patterns),
                "additionalProperties": rest,
            }));
        }
        Ok(())
    }

    /// Collects the properties that a schema evaluates. Returns false if this depends on the answer.
    fn evaluated(
        &self,
        from: &'a Map<String, Value>,
        place: &Place<'a>,
        names: &mut Evaluated<'a>,
        depth: usize,
    ) -> Result<bool, SchemaError> {
        if depth > 8
            || !self.has_fuel()
            || ["anyOf", "oneOf", "if", "dependentSchemas"].iter().any(|key| from.contains_key(*key))
        {
            return Ok(false);
        }
        let keys = |key| from.get(key).and_then(Value::as_object).into_iter().flatten();
        names.properties.extend(keys("properties").map(|(name, _)| name.as_str()));
        names.patterns.extend(keys("patternProperties").map(|(name, _)| name.as_str()));
        names.is_everything |= from.contains_key("additionalProperties");
        let mut parts: Vec<(&'a Value, Place<'a>)> = Vec::new();
        let list = from.get("allOf").and_then(Value::as_array).into_iter().flatten();
        parts.extend(list.map(|value| (value, place.to("allOf"))));
        if let Some(reference) = from.get("$ref") {
            parts.push(self.resolve(reference, &place.to("$ref"))?);
        }
        for (value, place) in parts {
            if let Value::Object(object) = value {
                names.is_everything |= depth > 0 && object.contains_key("unevaluatedProperties");
                if !self.evaluated(object, &place, names, depth + 1)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

#[derive(Default)]
struct Evaluated<'a> {
    properties: Vec<&'a str>,
    patterns: Vec<&'a str>,
    is_everything: bool,
}

/// Returns a regular expression for the formats that occur in names.
fn pattern_of_format(format: &str) -> Option<&'static str> {
    match format {
        "uuid" => Some("^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"),
        "date" => Some("^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"),
        "ipv4" => Some("^((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])$"),
        _ => None,
    }
}
