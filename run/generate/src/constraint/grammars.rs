//! Finds the JSON schemas in a grammar, and prepares them for llguidance.

use super::refusal::Refusal;
use super::schema::{self, Slot};
use crate::SchemaNote;

/// A grammar, cut into the texts between its schemas and the texts of its schemas.
pub struct Schemas<'g> {
    /// A text up to and including `%json`, and the text of the schema behind it.
    parts: Vec<(&'g str, &'g str)>,
    /// The text behind the last schema.
    rest: &'g str,
}

/// A grammar with prepared schemas, and the slots and notes of all schemas.
#[derive(Default)]
pub struct PreparedGrammar {
    pub text: String,
    pub slots: Vec<Slot>,
    pub notes: Vec<SchemaNote>,
}

/// Returns the schemas of a grammar, or `None` if the grammar has none, or is not well-formed.
pub fn schemas(grammar: &str) -> Option<Schemas<'_>> {
    let (mut parts, mut start, mut at) = (Vec::new(), 0, 0);
    while let Some(next) = grammar[at..].find(['"', '/', '#', '%']) {
        at += next;
        let from = &grammar[at..];
        at += if from.starts_with('#') || from.starts_with("//") {
            from.find('\n').unwrap_or(from.len())
        } else if from.starts_with(['"', '/']) {
            delimited(from)?
        } else if let Some(after) = from.strip_prefix("%json") {
            let schema = at + "%json".len();
            let length = json_length(after)?;
            parts.push((&grammar[start..schema], &grammar[schema..schema + length]));
            start = schema + length;
            start - at
        } else if let Some(word) = ["%regex", "%llguidance"].into_iter().find(|word| from.starts_with(word)) {
            word.len() + json_length(&from[word.len()..])?
        } else {
            1
        };
    }
    (!parts.is_empty()).then(|| Schemas { parts, rest: &grammar[start..] })
}

impl Schemas<'_> {
    /// Returns the grammar with empty schemas. All other characters keep their lines and columns.
    pub fn blank(&self) -> String {
        let blank = |schema: &str| -> String {
            let first = schema.chars().count() - schema.trim_start().chars().count();
            let last = schema.trim_end().chars().count().saturating_sub(1);
            let blank = |(at, character)| match character {
                _ if at == first => '{',
                _ if at == last => '}',
                '\n' => '\n',
                _ => ' ',
            };
            schema.chars().enumerate().map(blank).collect()
        };
        let parts = self.parts.iter().map(|(before, schema)| format!("{before}{}", blank(schema)));
        parts.collect::<String>() + self.rest
    }

    /// Prepares all schemas.
    pub fn prepared(&self, is_flexible: bool) -> Result<PreparedGrammar, Refusal> {
        let (mut all, mut before) = (PreparedGrammar::default(), String::new());
        for (serial, &(text, schema)) in self.parts.iter().enumerate() {
            before.push_str(text);
            let prepared = schema::prepare(schema, is_flexible, serial).map_err(|why| {
                let line = before.lines().count().max(1);
                let column = before.lines().last().map_or(0, |line| line.chars().count()) + 1;
                Refusal::Grammar { at: Some((line, column)), why: why.to_string() }
            })?;
            before.push_str(schema);
            all.text.extend([text, " ", &prepared.schema.to_string()]);
            all.slots.extend(prepared.slots);
            all.notes.extend(prepared.notes);
        }
        all.text.push_str(self.rest);
        Ok(all)
    }
}

/// Returns the length of the string or regular expression at the start of `text`, including the delimiters.
pub fn delimited(text: &str) -> Option<usize> {
    let mark = text.chars().next()?;
    let mut characters = text.char_indices().skip(1);
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => drop(characters.next()),
            _ if character == mark => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Returns the length of the JSON value at the start of `text`.
fn json_length(text: &str) -> Option<usize> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
    values.next()?.ok()?;
    Some(values.byte_offset())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_in_a_grammar_are_found_and_all_else_is_as_it_was() {
        let compact = |grammar: &str| schemas(grammar).map(|found| found.prepared(false).unwrap().text);
        for (grammar, expected) in [
            (
                "start: \"a\" %json { \"type\": \"null\" } b // %json {}\nb: /%json {}\\//",
                Some(
                    "start: \"a\" %json {\"type\":\"null\",\"x-guidance\":{\"whitespace_flexible\":false}} b // %json {}\nb: /%json {}\\//",
                ),
            ),
            (
                "%llguidance {\"x\": \"%json {}\"}\nstart: %regex {\"any\": \"%json {}\"} %json{}",
                Some(
                    "%llguidance {\"x\": \"%json {}\"}\nstart: %regex {\"any\": \"%json {}\"} %json {\"x-guidance\":{\"whitespace_flexible\":false}}",
                ),
            ),
            ("start: \"\\\"%json {}\" # %json {}\n", None),
            ("start: é /[^\"]+/ \"%\" %lark { start: \"a\" }", None),
            // llguidance reports the errors in these texts.
            ("start: %json { \"type\": ", None),
            ("start: \"a", None),
        ] {
            assert_eq!(compact(grammar).as_deref(), expected, "{grammar}");
        }
    }

    #[test]
    fn a_blank_schema_keeps_the_positions_behind_it() {
        let grammar = "start: %json {\n  \"const\": \"é\"} rest\nrest: \"b\"";
        assert_eq!(schemas(grammar).unwrap().blank(), "start: %json {\n              } rest\nrest: \"b\"");
    }
}
