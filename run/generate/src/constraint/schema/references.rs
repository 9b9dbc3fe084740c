//! Finds the targets of references: JSON pointers, anchors and the names of embedded documents.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::{Place, Preparer, SchemaError};

/// The parts of a document that have a name.
#[derive(Default)]
pub struct Resources<'a> {
    /// By `$id` or `id`.
    named: HashMap<&'a str, &'a Value>,
    /// By the address of the named document and the anchor.
    anchored: HashMap<(*const Value, &'a str), &'a Value>,
}

/// Collects the parts of a document that have a name, by `$id`, `id` or an anchor.
pub fn resources(root: &Value) -> Resources<'_> {
    let mut found = Resources::default();
    collect(root, root, &mut found);
    found
}

fn collect<'a>(value: &'a Value, base: &'a Value, found: &mut Resources<'a>) {
    match value {
        Value::Object(object) => {
            let name = identity(value);
            let base = if name.is_some() { value } else { base };
            name.map(|name| found.named.entry(name).or_insert(value));
            let text = |key| object.get(key).and_then(Value::as_str);
            let old = ["$id", "id"].into_iter().filter_map(|key| text(key)?.strip_prefix('#'));
            let anchors = ["$anchor", "$dynamicAnchor"].into_iter().filter_map(text).chain(old);
            for anchor in anchors {
                found.anchored.entry((std::ptr::from_ref(base), anchor)).or_insert(value);
            }
            object.values().for_each(|value| collect(value, base, found));
        }
        Value::Array(list) => list.iter().for_each(|value| collect(value, base, found)),
        _ => {}
    }
}

/// Returns the name under which a schema is the document of its own references.
fn identity(value: &Value) -> Option<&str> {
    let name = |key| value.get(key).and_then(Value::as_str);
    let name = name("$id").or_else(|| name("id")).map(|name| name.trim_end_matches('#'));
    name.filter(|name| !name.is_empty() && !name.starts_with('#'))
}

/// Decodes `%3C` and its like, and returns `None` for text that is not UTF-8 afterwards.
fn percent_decoded(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.filter(|_| first == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).ok()
}

impl<'a> Preparer<'a> {
    /// Returns a reference to the target's entry in the `$defs` of the prepared schema.
    pub fn reference(&mut self, value: &Value, place: &Place<'a>) -> Result<Value, SchemaError> {
        let (target, place) = self.resolve(value, place)?;
        let count = self.targets.len();
        let index = *self.places.entry(std::ptr::from_ref(target)).or_insert(count);
        if index == count {
            self.targets.push((target, place));
        }
        Ok(json!(format!("#/$defs/{index}")))
    }

    /// Returns the schema to which a reference leads, and the schema's place.
    pub fn resolve(&self, value: &Value, place: &Place<'a>) -> Result<(&'a Value, Place<'a>), SchemaError> {
        let Some(reference) = value.as_str() else {
            return Err(self.wrong(value, place, "the place of a schema, such as `#/$defs/NAME`"));
        };
        let found = self.find(reference, place.base);
        found
            .filter(|(target, _)| target.is_object() || target.is_boolean())
            .ok_or_else(|| SchemaError::Reference { at: place.at.clone(), reference: reference.to_owned() })
    }

    fn find(&self, reference: &str, base: &'a Value) -> Option<(&'a Value, Place<'a>)> {
        let (name, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let fragment = percent_decoded(fragment)?;
        if name.is_empty() {
            // Some generators embed a named document, and refer to the outer document in it.
            return self.within(base, &fragment).or_else(|| self.within(self.root, &fragment));
        }
        let directory = identity(base).and_then(|base| base.rfind('/').map(|end| &base[..=end]));
        let joined = directory.map(|directory| format!("{directory}{name}"));
        let named = |name: &str| self.resources.named.get(name).copied();
        let resource = named(name).or_else(|| named(&joined?)).or_else(|| named(&percent_decoded(name)?))?;
        self.within(resource, &fragment)
    }

    fn within(&self, resource: &'a Value, fragment: &str) -> Option<(&'a Value, Place<'a>)> {
        let here = |base, at: &str| Place { base, at: at.to_owned() };
        match fragment.strip_prefix('/') {
            None if fragment.is_empty() => Some((resource, here(resource, "#"))),
            None => {
                let target = *self.resources.anchored.get(&(std::ptr::from_ref(resource), fragment))?;
                let base = if identity(target).is_some() { target } else { resource };
                Some((target, here(base, &format!("#{fragment}"))))
            }
            Some("") if resource.get("").is_none() => Some((resource, here(resource, "#"))),
            Some(pointer) => {
                let (mut target, mut base) = (resource, resource);
                for segment in pointer.split('/') {
                    target = target.pointer(&format!("/{segment}"))?;
                    if identity(target).is_some() {
                        base = target;
                    }
                }
                Some((target, here(base, fragment)))
            }
        }
    }

    /// Returns the place of a schema's own references: a named schema is a document of its own.
    pub fn place_of(&self, value: &'a Value, place: &Place<'a>) -> Place<'a> {
        match identity(value) {
            Some(_) => Place { base: value, at: place.at.clone() },
            None => place.clone(),
        }
    }
}
