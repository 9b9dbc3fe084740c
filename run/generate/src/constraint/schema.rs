//! Prepares a JSON schema for llguidance, which refuses or changes keywords, references and numbers of
//! generated schemas. This module drops annotations, inlines the places of references under `$defs`, and
//! replaces some values by *slots*. A slot is a string that llguidance compiles to its own lexeme, which then
//! receives another regular expression.

use std::cell::Cell;
use std::collections::HashMap;

use llguidance::derivre::RegexAst;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::crash;
use crate::schema_error::{DEEPEST, SchemaError, SchemaNote, SchemaSyntaxError};

mod arrays;
mod disjoint;
mod keywords;
mod numbers;
mod objects;
mod patterns;
mod references;
mod wrappers;

/// A schema that llguidance accepts, and the regular expressions of its slots.
pub struct Prepared {
    pub schema: Value,
    pub slots: Vec<Slot>,
    pub notes: Vec<SchemaNote>,
}

/// A lexeme that is compiled from `name`, and stands for the texts that `texts` matches.
pub struct Slot {
    pub name: String,
    pub texts: RegexAst,
}

/// Rewrites a schema. `is_flexible` permits whitespace by default; `serial` numbers the grammar's schemas.
pub fn prepare(text: &str, is_flexible: bool, serial: usize) -> Result<Prepared, PrepareError> {
    crash::as_told(text, "prepare");
    let (document, mark) = numbers::parse(text).map_err(SchemaSyntaxError::from)?;
    let depth = depth(&document);
    if depth > DEEPEST {
        return Err(SchemaError::Depth { found: depth }.into());
    }
    let (root, at) = wrappers::unwrap(&document);
    let options = root.get(OPTIONS).cloned().unwrap_or_else(|| json!({}));
    let spacing = Spacing::of(&options, is_flexible);
    let mut preparer = Preparer {
        root,
        mark,
        serial,
        spacing,
        slots: Vec::new(),
        numbers: HashMap::new(),
        places: HashMap::new(),
        targets: Vec::new(),
        resources: references::resources(root),
        notes: Vec::new(),
        fuel: Cell::new(100_000),
        digits: 8_000_000,
    };
    let place = Place { base: root, at };
    let mut schema = preparer.schema(root, &place)?;
    let mut named = Map::new();
    while let Some((value, place)) = preparer.targets.get(named.len()).cloned() {
        named.insert(named.len().to_string(), preparer.schema(value, &place)?);
    }
    for slot in &preparer.slots {
        // `enum` is a keyword in all drafts, and `const` is not.
        named.insert(slot.name.clone(), json!({ "enum": [slot.name] }));
    }
    if root.as_object().is_some_and(|object| !object.is_empty() && !keywords::has_known(object)) {
        preparer.notes.push(SchemaNote::Anything);
    }
    if schema == Value::Bool(true) {
        schema = json!({});
    }
    if let Value::Object(object) = &mut schema {
        if !named.is_empty() {
            object.insert("$defs".to_owned(), named.into());
        }
        object.insert(OPTIONS.to_owned(), options);
        if let Some(Value::Object(options)) = object.get_mut(OPTIONS) {
            options.entry("whitespace_flexible").or_insert(is_flexible.into());
        }
    }
    Ok(Prepared { schema, slots: preparer.slots, notes: preparer.notes })
}

/// The key under which a schema contains options of llguidance.
const OPTIONS: &str = "x-guidance";

/// The reason why a text is not a schema that Tracewright follows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum PrepareError {
    #[error(transparent)]
    Syntax(#[from] SchemaSyntaxError),
    #[error(transparent)]
    Schema(#[from] SchemaError),
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or_default(),
        Value::Object(object) => 1 + object.values().map(depth).max().unwrap_or_default(),
        _ => 0,
    }
}

/// The regular expressions between the items of an array in a slot.
#[derive(Clone)]
struct Spacing {
    space: String,
    separator: String,
}

impl Spacing {
    fn of(options: &Value, is_flexible: bool) -> Self {
        let text = |key| options.get(key).and_then(Value::as_str);
        let flexible = options.get("whitespace_flexible").and_then(Value::as_bool).unwrap_or(is_flexible);
        let space = match text("whitespace_pattern") {
            Some(pattern) => format!("(?:{pattern})?"),
            None if flexible => "[\\x20\\x0A\\x0D\\x09]*".to_owned(),
            None => String::new(),
        };
        Self { space, separator: text("item_separator").unwrap_or(",").to_owned() }
    }
}

/// A place in the schema: the document of the references, and the JSON pointer for messages.
#[derive(Clone)]
struct Place<'a> {
    base: &'a Value,
    at: String,
}

impl Place<'_> {
    fn to(&self, key: &str) -> Self {
        let key = key.replace('~', "~0").replace('/', "~1");
        Self { base: self.base, at: format!("{}/{key}", self.at) }
    }

    /// Creates the error for a keyword at this place that has no equivalent in a grammar.
    fn unsupported(&self, keyword: &'static str, help: &'static str) -> SchemaError {
        SchemaError::Unsupported { at: self.at.clone(), keyword: keyword.into(), help: help.into() }
    }
}

struct Preparer<'a> {
    root: &'a Value,
    mark: char,
    serial: usize,
    spacing: Spacing,
    slots: Vec<Slot>,
    /// The slots of numbers by the numbers' texts.
    numbers: HashMap<String, Value>,
    /// The indices in `targets` by the address of the target.
    places: HashMap<*const Value, usize>,
    /// The targets of references, which become the entries of `$defs`.
    targets: Vec<(&'a Value, Place<'a>)>,
    resources: references::Resources<'a>,
    notes: Vec<SchemaNote>,
    /// The comparisons of schemas that are left, because a schema can describe too many.
    fuel: Cell<u32>,
    /// The characters that the regular expressions of all ranges may still have.
    digits: usize,
}

impl Preparer<'_> {
    /// Creates a slot, and returns a schema that refers to it.
    fn slot(&mut self, texts: RegexAst) -> Value {
        let name = format!("{}{}-{}", self.mark, self.serial, self.slots.len());
        let reference = json!({ "$ref": format!("#/$defs/{name}") });
        self.slots.push(Slot { name, texts });
        reference
    }

    fn note(&mut self, note: SchemaNote) {
        if self.notes.len() < 20 && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Whether a comparison is left.
    fn has_fuel(&self) -> bool {
        self.fuel.set(self.fuel.get().saturating_sub(1));
        self.fuel.get() > 0
    }

    /// Shortens a value for a message.
    fn shown(&self, value: &Value) -> String {
        let text = numbers::text(value, self.mark).unwrap_or_else(|| value.to_string());
        let text = text.replace(self.mark, "");
        match text.char_indices().nth(60) {
            Some((end, _)) => format!("`{}…`", &text[..end]),
            None => format!("`{text}`"),
        }
    }

    fn wrong(&self, value: &Value, place: &Place<'_>, expected: &'static str) -> SchemaError {
        let at = if place.at.is_empty() { "/".to_owned() } else { place.at.clone() };
        SchemaError::Kind { at, found: self.shown(value), expected: expected.into() }
    }
}
