//! Rewrites the keywords of one schema.

use llguidance::derivre::RegexAst;
use serde_json::{Map, Value, json};

use super::numbers::{Decimal, Range, RangeEnd};
use super::{Place, Preparer, SchemaError, numbers};

/// All types of JSON Schema. `number` includes `integer`.
const TYPES: [&str; 7] = ["null", "boolean", "number", "integer", "string", "array", "object"];

/// The types of an object without `type`.
pub const ALL: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

/// The formats that llguidance enforces. All other formats are annotations.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

const REFERENCES: [&str; 3] = ["$ref", "$recursiveRef", "$dynamicRef"];

const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];

/// The keywords that combine schemas, in which llguidance cannot see a slot's value.
const COMBINING: [&str; 4] = ["allOf", "anyOf", "oneOf", "$ref"];

const KNOWN: [&str; 45] = [
    "$ref",
    "$recursiveRef",
    "$dynamicRef",
    "type",
    "enum",
    "const",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "properties",
    "patternProperties",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "required",
    "minProperties",
    "maxProperties",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "items",
    "prefixItems",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "minContains",
    "maxContains",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "$defs",
    "definitions",
];

/// Whether a keyword of JSON Schema is not an annotation.
pub fn is_known(key: &str) -> bool {
    KNOWN.contains(&key)
}

/// Whether an object has a keyword of JSON Schema that is not an annotation.
pub fn has_known(object: &Map<String, Value>) -> bool {
    object.keys().any(|key| is_known(key))
}

/// The schema under construction, and the schemas that a value must follow in addition.
#[derive(Default)]
pub struct Draft {
    pub out: Map<String, Value>,
    pub also: Vec<Value>,
}

impl<'a> Preparer<'a> {
    /// Rewrites a schema.
    pub fn schema(&mut self, value: &'a Value, place: &Place<'a>) -> Result<Value, SchemaError> {
        match value {
            Value::Bool(_) => Ok(value.clone()),
            Value::Object(object) => {
                let place = self.place_of(value, place);
                self.object(object, &place)
            }
            _ => Err(self.wrong(value, place, "a schema, which is an object or a boolean")),
        }
    }

    fn object(&mut self, from: &'a Map<String, Value>, place: &Place<'a>) -> Result<Value, SchemaError> {
        let types = self.types(from, place)?;
        let mut draft = Draft::default();
        if from.get("not").is_some_and(|not| self.is_any(not)) {
            return Ok(Value::Bool(false));
        }
        for (key, value) in from {
            self.keyword(key, value, from, &place.to(key), &mut draft)?;
        }
        self.refuse(from, place)?;
        self.object_keywords(from, place, &mut draft)?;
        self.array_keywords(from, place, &mut draft)?;
        let mut schema = self.with_also(draft);
        schema = self.with_not(from, &types, place, schema)?;
        if schema == Value::Bool(false) {
            return Ok(schema);
        }
        schema = self.with_values(from, &types, place, schema)?;
        schema = self.with_pattern(from, &types, place, schema)?;
        schema = self.with_range(from, &types, place, schema)?;
        schema = self.with_unique(from, &types, place, schema)?;
        Ok(simplified(schema))
    }

    fn keyword(
        &mut self,
        key: &str,
        value: &'a Value,
        from: &Map<String, Value>,
        place: &Place<'a>,
        draft: &mut Draft,
    ) -> Result<(), SchemaError> {
        let kept = match key {
            "type" => value.clone(),
            "multipleOf" => {
                let text = self.text_of_number(value, place)?;
                if !Decimal::parse(&text).is_some_and(|step| step.is_positive()) {
                    return Err(self.wrong(value, place, "a number above 0"));
                }
                self.unmarked(value, place)?
            }
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
                self.count(value, place)?
            }
            "format" if value.as_str().is_some_and(|format| FORMATS.contains(&format)) => value.clone(),
            "required" => self.names(value, place)?,
            "properties" | "patternProperties" => self.map(value, place)?.into(),
            "additionalProperties" => self.schema(value, place)?,
            "items" if value.is_array() => {
                let list = self.list(value, place)?;
                draft.out.insert("prefixItems".to_owned(), list);
                return Ok(());
            }
            "prefixItems" if value.as_array().is_some_and(Vec::is_empty) => return Ok(()),
            "prefixItems" => self.list(value, place)?,
            "items" => self.schema(value, place)?,
            "additionalItems" if from.get("items").is_some_and(Value::is_array) => {
                let rest = self.schema(value, place)?;
                draft.out.insert("items".to_owned(), rest);
                return Ok(());
            }
            "enum" if value.is_array() => return Ok(()),
            "enum" => return Err(self.wrong(value, place, "a list of values")),
            "allOf" | "anyOf" | "oneOf" => {
                let list = self.list(value, place)?;
                let key = match key {
                    "oneOf" if !self.are_disjoint(value, place) => {
                        self.note(super::SchemaNote::OneOf { at: place.at.clone() });
                        "anyOf"
                    }
                    "oneOf" => "anyOf",
                    key => key,
                };
                // Both `anyOf` and `oneOf` become `anyOf`.
                if draft.out.contains_key(key) {
                    draft.also.push(json!({ key: list }))
                } else {
                    drop(draft.out.insert(key.to_owned(), list))
                }
                return Ok(());
            }
            key if REFERENCES.contains(&key) => {
                let reference = self.reference(value, place)?;
                if draft.out.contains_key("$ref") {
                    draft.also.push(json!({ "$ref": reference }))
                } else {
                    drop(draft.out.insert("$ref".to_owned(), reference))
                }
                return Ok(());
            }
            key if BOUNDS.contains(&key) => {
                // Draft 4 has booleans here.
                return if value.is_boolean() && key.starts_with("exclusive") {
                    Ok(())
                } else {
                    self.text_of_number(value, place).map(drop)
                };
            }
            _ => return Ok(()),
        };
        draft.out.insert(key.to_owned(), kept);
        Ok(())
    }

    /// Rewrites a list of schemas.
    pub fn list(&mut self, value: &'a Value, place: &Place<'a>) -> Result<Value, SchemaError> {
        let Some(list) = value.as_array().filter(|list| !list.is_empty()) else {
            return Err(self.wrong(value, place, "a list of schemas"));
        };
        let schemas = list.iter().enumerate();
        schemas.map(|(index, value)| self.schema(value, &place.to(&index.to_string()))).collect()
    }

    /// Rewrites an object whose values are schemas.
    pub fn map(&mut self, value: &'a Value, place: &Place<'a>) -> Result<Map<String, Value>, SchemaError> {
        let Some(object) = value.as_object() else {
            return Err(self.wrong(value, place, "an object of schemas"));
        };
        object.iter().map(|(key, value)| Ok((key.clone(), self.schema(value, &place.to(key))?))).collect()
    }

    fn types(&self, from: &'a Map<String, Value>, place: &Place<'a>) -> Result<Vec<&'a str>, SchemaError> {
        let Some(value) = from.get("type") else { return Ok(ALL.to_vec()) };
        let expected =
            "`null`, `boolean`, `number`, `integer`, `string`, `array`, `object`, or a list of these types";
        let name = |value: &'a Value| value.as_str().filter(|name| TYPES.contains(name));
        let names: Option<Vec<&str>> = match value {
            Value::Array(list) if !list.is_empty() => list.iter().map(name).collect(),
            value => name(value).map(|name| vec![name]),
        };
        names.ok_or_else(|| self.wrong(value, &place.to("type"), expected))
    }

    /// Reads a number of characters, items or properties. `3.0` is a whole number too.
    pub fn count(&self, value: &Value, place: &Place<'_>) -> Result<Value, SchemaError> {
        let whole = numbers::text(value, self.mark).and_then(|text| Decimal::parse(&text));
        let whole = whole.filter(Decimal::is_integer).and_then(|whole| whole.to_u32());
        whole.map(Value::from).ok_or_else(|| self.wrong(value, place, "a whole number below 4294967296"))
    }

    pub fn names(&self, value: &Value, place: &Place<'_>) -> Result<Value, SchemaError> {
        let is_list = value.as_array().is_some_and(|list| list.iter().all(Value::is_string));
        is_list.then(|| value.clone()).ok_or_else(|| self.wrong(value, place, "a list of names"))
    }

    fn text_of_number(&self, value: &Value, place: &Place<'_>) -> Result<String, SchemaError> {
        numbers::text(value, self.mark).ok_or_else(|| self.wrong(value, place, "a number"))
    }

    /// Converts a marked number to an f64.
    fn unmarked(&self, value: &Value, place: &Place<'_>) -> Result<Value, SchemaError> {
        if !value.as_str().is_some_and(|text| text.starts_with(self.mark)) {
            return Ok(value.clone());
        }
        let number = self.text_of_number(value, place)?.parse::<f64>().ok();
        let number = number.and_then(serde_json::Number::from_f64);
        number.map(Value::from).ok_or_else(|| self.wrong(value, place, "a finite number"))
    }

    /// Whether a schema allows everything.
    pub fn is_any(&self, value: &Value) -> bool {
        match value {
            Value::Object(object) => !has_known(object),
            value => *value == Value::Bool(true),
        }
    }

    fn with_also(&mut self, draft: Draft) -> Value {
        let Draft { mut out, mut also } = draft;
        if also.is_empty() {
            return out.into();
        }
        if let Some(Value::Array(first)) = out.remove("allOf") {
            also.splice(0..0, first);
        }
        out.insert("allOf".to_owned(), also.into());
        out.into()
    }

    /// Refuses the keywords that have no equivalent in a grammar.
    fn refuse(&self, from: &Map<String, Value>, place: &Place<'_>) -> Result<(), SchemaError> {
        let unsupported = |keyword, help| Err(place.to(keyword).unsupported(keyword, help));
        if from.contains_key("if") && (from.contains_key("then") || from.contains_key("else")) {
            return unsupported("if", "list the cases in `anyOf`, each with a `const` that distinguishes it");
        }
        let least = from.get("minContains").map_or(Some(1), Value::as_u64);
        if from.contains_key("contains") && (least != Some(0) || from.contains_key("maxContains")) {
            return unsupported("contains", "describe the first items in `prefixItems`, or set `minItems`");
        }
        Ok(())
    }

    /// Narrows by `const` and `enum`. A value with a number that llguidance would change becomes a slot.
    fn with_values(
        &mut self,
        from: &'a Map<String, Value>,
        types: &[&str],
        place: &Place<'a>,
        mut schema: Value,
    ) -> Result<Value, SchemaError> {
        let list = from.get("enum").and_then(Value::as_array);
        let mut values: Vec<&Value> = match (list, from.get("const")) {
            (None, None) => return Ok(schema),
            (None, Some(value)) => vec![value],
            (Some(list), None) => list.iter().collect(),
            (Some(list), Some(value)) => list.iter().filter(|one| *one == value).collect(),
        };
        let range = self.range(from, place)?;
        let is_allowed = |value: &&Value| match numbers::text(value, self.mark) {
            Some(text) => Decimal::parse(&text).is_some_and(|number| {
                (types.contains(&"number") || (types.contains(&"integer") && number.is_integer()))
                    && range.contains(&number)
            }),
            None => types.contains(&type_of(value)),
        };
        values.retain(is_allowed);
        if values.is_empty() {
            let key = if list.is_some() { "enum" } else { "const" };
            return Err(self.wrong(
                &from[key],
                &place.to(key),
                "a value of the type and the range beside it",
            ));
        }
        let (plain, special): (Vec<&Value>, Vec<&Value>) =
            values.into_iter().partition(|value| self.is_plain(value));
        let mut options = Vec::new();
        if !plain.is_empty() {
            let plain: Result<Vec<Value>, _> =
                plain.into_iter().map(|value| self.unmarked_exact(value, place)).collect();
            let object = schema.as_object_mut().filter(|object| !object.is_empty());
            match object {
                Some(object) => drop(object.insert("enum".to_owned(), plain?.into())),
                None => schema = json!({ "enum": plain? }),
            }
            options.push(schema);
        } else if COMBINING.iter().any(|key| from.contains_key(*key)) {
            let help = "move the number into the schemas that are combined with it";
            return Err(place.to("const").unsupported("const", help));
        }
        for value in special {
            options.push(self.constant(value, types, place)?);
        }
        Ok(any_of(options))
    }

    /// Whether llguidance writes the value as Python does.
    fn is_plain(&self, value: &Value) -> bool {
        match value {
            Value::Array(list) => list.iter().all(|value| self.is_plain(value)),
            Value::Object(object) => object.values().all(|value| self.is_plain(value)),
            value => numbers::text(value, self.mark).is_none_or(|text| numbers::plain(&text).is_some()),
        }
    }

    fn unmarked_exact(&self, value: &Value, place: &Place<'_>) -> Result<Value, SchemaError> {
        Ok(match value {
            Value::Array(list) => {
                let list: Result<Vec<_>, _> =
                    list.iter().map(|value| self.unmarked_exact(value, place)).collect();
                list?.into()
            }
            Value::Object(object) => {
                let entry =
                    |(key, value): (&String, &Value)| Ok((key.clone(), self.unmarked_exact(value, place)?));
                Value::Object(object.iter().map(entry).collect::<Result<_, SchemaError>>()?)
            }
            value => self.unmarked(value, place)?,
        })
    }

    /// Returns a schema for exactly this value, whose numbers are slots if necessary.
    fn constant(&mut self, value: &Value, types: &[&str], place: &Place<'_>) -> Result<Value, SchemaError> {
        if self.is_plain(value) {
            return Ok(json!({ "enum": [self.unmarked_exact(value, place)?] }));
        }
        Ok(match value {
            Value::Array(list) => {
                let items: Result<Vec<_>, _> =
                    list.iter().map(|value| self.constant(value, &ALL, place)).collect();
                json!({ "type": "array", "prefixItems": items?, "minItems": list.len(), "items": false })
            }
            Value::Object(object) => {
                let entry =
                    |(key, value): (&String, &Value)| Ok((key.clone(), self.constant(value, &ALL, place)?));
                let properties: Map<String, Value> =
                    object.iter().map(entry).collect::<Result<_, SchemaError>>()?;
                let required: Vec<&String> = object.keys().collect();
                json!({
                    "type": "object",
                    "required": required,
                    "properties": properties,
                    "additionalProperties": false,
                })
            }
            value => {
                let text = self.text_of_number(value, place)?;
                let whole = Decimal::parse(&text).filter(|_| !types.contains(&"number"));
                let printed = whole.map(|whole| whole.to_string()).or_else(|| numbers::in_python(&text));
                let Some(printed) = printed else {
                    return Err(self.wrong(value, place, "a number of the range of f64"));
                };
                if let Some(slot) = self.numbers.get(&printed) {
                    return Ok(slot.clone());
                }
                let slot = self.slot(RegexAst::Literal(printed.clone()));
                self.numbers.insert(printed, slot.clone());
                slot
            }
        })
    }

    /// Reads the bounds of the numbers, in the notation of draft 4 or of later drafts.
    pub fn range(&self, from: &Map<String, Value>, place: &Place<'_>) -> Result<Range, SchemaError> {
        let mut range = Range::default();
        let is_exclusive = |key: &str| from.get(key).is_some_and(|value| *value == Value::Bool(true));
        for key in BOUNDS {
            let Some(value) = from.get(key).filter(|value| !value.is_boolean()) else { continue };
            let text = self.text_of_number(value, &place.to(key))?;
            let Some(at) = Decimal::parse(&text) else {
                return Err(self.wrong(value, &place.to(key), "a number of at most 400 digits"));
            };
            let exclusive = match key {
                "minimum" => is_exclusive("exclusiveMinimum"),
                "maximum" => is_exclusive("exclusiveMaximum"),
                _ => true,
            };
            let bound = RangeEnd { at, is_exclusive: exclusive };
            match key {
                "minimum" | "exclusiveMinimum" => range.raise(bound),
                _ => range.lower(bound),
            }
        }
        Ok(range)
    }

    /// Adds the bounds of numbers. Bounds that llguidance would round become a slot.
    fn with_range(
        &mut self,
        from: &Map<String, Value>,
        types: &[&str],
        place: &Place<'a>,
        mut schema: Value,
    ) -> Result<Value, SchemaError> {
        let range = self.range(from, place)?;
        let is_number = types.iter().any(|name| ["number", "integer"].contains(name));
        if !is_number || from.contains_key("enum") || from.contains_key("const") {
            return Ok(schema);
        }
        if range.is_empty() {
            let (key, value) =
                BOUNDS.iter().find_map(|key| Some((*key, from.get(*key)?))).unwrap_or(("type", &Value::Null));
            return Err(self.wrong(value, &place.to(key), "a range with at least one number"));
        }
        let step = from.get("multipleOf").and_then(|step| numbers::text(step, self.mark));
        if range.is_plain() && step.is_none_or(|step| numbers::is_plain_step(&step)) {
            if let Value::Object(object) = &mut schema {
                for key in BOUNDS {
                    if let Some(value) = from.get(key) {
                        object.insert(key.to_owned(), self.unmarked(value, place)?);
                    }
                }
            }
            return Ok(schema);
        }
        let is_integer = !types.contains(&"number");
        let Some(digits) = self.digits.checked_sub(range.cost()) else {
            let place = place.to(BOUNDS.into_iter().find(|key| from.contains_key(*key)).unwrap_or("type"));
            return Err(place.unsupported("minimum", "use fewer bounds with many digits"));
        };
        self.digits = digits;
        let mut texts = vec![range.regex(is_integer)];
        if let Some(step) = from.get("multipleOf") {
            let place = place.to("multipleOf");
            let text = self.text_of_number(step, &place)?;
            let step = Decimal::parse(&text).and_then(|decimal| decimal.to_step());
            let Some((digits, places)) = step else {
                return Err(self.wrong(&from["multipleOf"], &place, "a number with at most 9 digits"));
            };
            let sign = RegexAst::Regex("-?".to_owned());
            texts.push(RegexAst::Concat(vec![sign, RegexAst::MultipleOf(digits, places)]));
        }
        let slot = self.slot(RegexAst::And(texts));
        let key = BOUNDS.into_iter().find(|key| from.contains_key(*key)).unwrap_or("multipleOf");
        self.split(schema, types, &["number", "integer"], slot, from, place, key)
    }

    /// Replaces the values of some types in a schema by a slot.
    #[allow(clippy::too_many_arguments, reason = "all are parts of one schema")]
    pub fn split(
        &mut self,
        mut schema: Value,
        types: &[&str],
        replaced: &[&str],
        slot: Value,
        from: &Map<String, Value>,
        place: &Place<'_>,
        keyword: &'static str,
    ) -> Result<Value, SchemaError> {
        if COMBINING.iter().any(|key| from.contains_key(*key)) {
            let help =
                "move the keyword into the schemas that `allOf`, `anyOf`, `oneOf` or `$ref` combine with it";
            return Err(place.to(keyword).unsupported(keyword, help));
        }
        let rest: Vec<&&str> = types.iter().filter(|name| !replaced.contains(name)).collect();
        if rest.is_empty() {
            return Ok(slot);
        }
        if let Value::Object(object) = &mut schema {
            object.insert("type".to_owned(), json!(rest));
        }
        Ok(any_of(vec![slot, schema]))
    }

    /// Applies `not` to types, and refuses all other uses.
    fn with_not(
        &self,
        from: &Map<String, Value>,
        types: &[&str],
        place: &Place<'_>,
        mut schema: Value,
    ) -> Result<Value, SchemaError> {
        let Some(not) = from.get("not").filter(|not| **not != Value::Bool(false)) else { return Ok(schema) };
        let excluded: Option<Vec<&str>> = match not.as_object() {
            Some(object) if object.keys().filter(|key| is_known(key)).eq(["type"]) => match &object["type"] {
                Value::Array(list) => list.iter().map(Value::as_str).collect(),
                value => value.as_str().map(|name| vec![name]),
            },
            _ => None,
        };
        let excluded = excluded.filter(|excluded| !excluded.contains(&"integer"));
        let Some(excluded) = excluded else {
            let help = "list the allowed values with `enum`, `pattern` or `anyOf`";
            return Err(place.to("not").unsupported("not", help));
        };
        let is_left =
            |name: &&&str| !(excluded.contains(*name) || **name == "integer" && excluded.contains(&"number"));
        let left: Vec<&&str> = types.iter().filter(is_left).collect();
        if left.is_empty() {
            return Ok(Value::Bool(false));
        }
        if let Value::Object(object) = &mut schema {
            object.insert("type".to_owned(), json!(left));
        }
        Ok(schema)
    }
}

/// Returns the JSON type of a value that is not a number.
pub fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

pub fn any_of(mut options: Vec<Value>) -> Value {
    match options.len() {
        1 => options.remove(0),
        _ => json!({ "anyOf": options }),
    }
}

/// Removes an `allOf` of one schema that stands alone.
fn simplified(mut schema: Value) -> Value {
    match schema.get_mut("allOf") {
        Some(Value::Array(list)) if list.len() == 1 => {
            let only = list[0].take();
            if schema.as_object().is_some_and(|object| object.len() == 1) {
                return only;
            }
            schema["allOf"] = json!([only]);
            schema
        }
        _ => schema,
    }
}
