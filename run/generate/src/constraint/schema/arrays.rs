//! Rewrites the keywords of arrays that llguidance does not have.

use llguidance::derivre::RegexAst;
use serde_json::{Map, Value};

use super::keywords::Draft;
use super::numbers::{self, Decimal};
use super::{Place, Preparer, SchemaError, SchemaNote};

/// The most values of a list whose repetition a regular expression excludes.
const VALUES: usize = 32;

impl<'a> Preparer<'a> {
    /// Rewrites `unevaluatedItems`.
    pub fn array_keywords(
        &mut self,
        from: &'a Map<String, Value>,
        place: &Place<'a>,
        draft: &mut Draft,
    ) -> Result<(), SchemaError> {
        let key = "unevaluatedItems";
        let Some(value) = from.get(key).filter(|value| !self.is_any(value)) else { return Ok(()) };
        if ["allOf", "anyOf", "oneOf", "$ref", "if"].iter().any(|key| from.contains_key(*key)) {
            let help = "set `items` in the schemas that are combined";
            return Err(place.to(key).unsupported(key, help));
        }
        if !draft.out.contains_key("items") {
            let rest = self.schema(value, &place.to(key))?;
            draft.out.insert("items".to_owned(), rest);
        }
        Ok(())
    }

    /// Excludes equal items if the items are from a list of values, and otherwise adds a note.
    pub fn with_unique(
        &mut self,
        from: &'a Map<String, Value>,
        types: &[&str],
        place: &Place<'a>,
        schema: Value,
    ) -> Result<Value, SchemaError> {
        let key = "uniqueItems";
        let most = from.get("maxItems").and_then(Value::as_u64);
        let is_single = most.is_some_and(|most| most <= 1);
        if from.get(key) != Some(&Value::Bool(true)) || !types.contains(&"array") || is_single {
            return Ok(schema);
        }
        if from.contains_key("enum") || from.contains_key("const") {
            return Ok(schema);
        }
        let is_alone =
            !["allOf", "anyOf", "oneOf", "$ref", "contains"].iter().any(|key| from.contains_key(*key));
        let is_tuple = from.contains_key("prefixItems") || from.get("items").is_some_and(Value::is_array);
        let values = match from.get("items") {
            Some(items) if is_alone && !is_tuple => self.values(items, &place.to("items"), 0),
            _ => None,
        };
        let values = values.filter(|values| (1..=VALUES).contains(&values.len()));
        let Some(values) = values else {
            self.note(SchemaNote::UniqueItems { at: place.to(key).at });
            return Ok(schema);
        };
        let least = from.get("minItems").and_then(Value::as_u64).unwrap_or_default();
        if least > values.len() as u64 {
            return Err(self.wrong(
                &from["minItems"],
                &place.to("minItems"),
                "at most the number of different items, because of `uniqueItems`",
            ));
        }
        let most = most.unwrap_or(u64::MAX).min(values.len() as u64);
        let texts = self.spacing.distinct(&values, least as u32, most as u32);
        let slot = self.slot(texts);
        self.split(schema, types, &["array"], slot, from, place, key)
    }

    /// Returns the texts of all values that a schema allows, if the schema lists them.
    fn values(&self, value: &'a Value, place: &Place<'a>, depth: usize) -> Option<Vec<String>> {
        let object = value.as_object().filter(|_| depth < 8 && self.has_fuel())?;
        let known = |keys: &[&str]| {
            let mut known = object.keys().filter(|key| super::keywords::is_known(key));
            known.all(|key| keys.contains(&key.as_str()))
        };
        let texts = |list: &[Value]| -> Option<Vec<String>> {
            list.iter().map(|value| self.text_of(value)).collect()
        };
        let mut found = if let Some(reference) = object.get("$ref").filter(|_| known(&["$ref", "$defs"])) {
            let (target, place) = self.resolve(reference, &place.to("$ref")).ok()?;
            self.values(target, &place, depth + 1)?
        } else if let Some(list) = object.get("enum").filter(|_| known(&["enum", "type"])) {
            texts(list.as_array()?)?
        } else if let Some(value) = object.get("const").filter(|_| known(&["const", "type"])) {
            texts(std::slice::from_ref(value))?
        } else if let Some(list) =
            object.get("anyOf").or(object.get("oneOf")).filter(|_| known(&["anyOf", "oneOf"]))
        {
            let each = list.as_array()?.iter().map(|value| self.values(value, place, depth + 1));
            each.collect::<Option<Vec<_>>>()?.concat()
        } else if object.get("type")? == "boolean" && known(&["type"]) {
            vec!["true".to_owned(), "false".to_owned()]
        } else if object.get("type")? == "null" && known(&["type"]) {
            vec!["null".to_owned()]
        } else if object.get("type")? == "integer" && known(&["type", "minimum", "maximum"]) {
            let end = |key| object.get(key).and_then(Value::as_i64);
            let (low, high) = (end("minimum")?, end("maximum")?);
            let is_short = high.checked_sub(low).is_some_and(|most| (0..VALUES as i64).contains(&most));
            is_short.then(|| (low..=high).map(|number| number.to_string()).collect())?
        } else {
            return None;
        };
        if found.len() > 8 * VALUES {
            return None;
        }
        let all = found.clone();
        let mut index = 0;
        found.retain(|text| {
            index += 1;
            !all[..index - 1].contains(text)
        });
        Some(found)
    }

    /// Returns the text of a value that is neither an array nor an object.
    fn text_of(&self, value: &Value) -> Option<String> {
        match numbers::text(value, self.mark) {
            // 1 and 1.0 are equal in JSON Schema.
            Some(text) => {
                Decimal::parse(&text).filter(Decimal::is_integer).and_then(|_| numbers::in_python(&text))
            }
            None if value.is_array() || value.is_object() => None,
            None => Some(value.to_string()),
        }
    }
}

impl super::Spacing {
    /// Returns a regular expression for the arrays of `least` to `most` different values.
    fn distinct(&self, values: &[String], least: u32, most: u32) -> RegexAst {
        let literal = |text: &str| RegexAst::Literal(text.to_owned());
        let space = || RegexAst::Regex(self.space.clone());
        let any = |values: &mut dyn Iterator<Item = &String>| {
            RegexAst::Or(values.map(|value| literal(value)).collect())
        };
        let separator = || RegexAst::Concat(vec![space(), RegexAst::Regex(self.separator.clone()), space()]);
        let open = || RegexAst::Concat(vec![literal("["), space()]);
        let close = || RegexAst::Concat(vec![space(), literal("]")]);
        let next = RegexAst::Concat(vec![separator(), any(&mut values.iter())]);
        let rest = RegexAst::Repeat(Box::new(next), least.saturating_sub(1), most.saturating_sub(1));
        let mut lists = vec![RegexAst::Concat(vec![open(), any(&mut values.iter()), rest, close()])];
        if least == 0 {
            lists.push(RegexAst::Concat(vec![open(), literal("]")]));
        }
        let mut all = vec![RegexAst::Or(lists)];
        for value in values {
            // Each item and the separator or the bracket behind it.
            let end = || RegexAst::Or(vec![separator(), close()]);
            let other =
                RegexAst::Concat(vec![any(&mut values.iter().filter(|other| *other != value)), end()]);
            let others = || RegexAst::Repeat(Box::new(other.clone()), 0, u32::MAX);
            let this = RegexAst::Concat(vec![literal(value), end()]);
            let once = RegexAst::Repeat(Box::new(this), 0, 1);
            let empty = RegexAst::Repeat(Box::new(literal("]")), 0, 1);
            all.push(RegexAst::Concat(vec![open(), others(), once, others(), empty]));
        }
        RegexAst::And(all)
    }
}
