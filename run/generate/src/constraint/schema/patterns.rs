//! Regular expressions of schemas, which are ECMAScript's. Look-ahead becomes an intersection.

use llguidance::derivre::{JsonQuoteOptions, RegexAst, RegexBuilder};
use llguidance::regex_to_lark;
use serde_json::{Map, Value};

use super::{Place, Preparer, SchemaError};

/// A part of a regular expression.
#[derive(Clone, Debug, PartialEq)]
enum Part {
    /// Characters, classes and groups without anchors and look-ahead, in Rust's notation.
    Plain(String),
    /// A group that contains an anchor or look-ahead, and the quantifier behind it.
    Group(Vec<Vec<Part>>, String),
    Ahead {
        is_negative: bool,
        alternatives: Vec<Vec<Part>>,
    },
    Start,
    End,
}

/// A feature that cannot be translated, as the pattern writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unsupported(&'static str);

struct Parser<'p> {
    rest: &'p str,
    /// The number of open groups.
    depth: usize,
}

impl Parser<'_> {
    fn take(&mut self) -> Option<char> {
        let first = self.rest.chars().next()?;
        self.rest = &self.rest[first.len_utf8()..];
        Some(first)
    }

    fn skip(&mut self, prefix: &str) -> bool {
        let rest = self.rest.strip_prefix(prefix);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Reads alternatives up to a closing parenthesis or the end.
    fn alternatives(&mut self) -> Result<Vec<Vec<Part>>, Unsupported> {
        let mut all = vec![Vec::new()];
        while let Some(first) = self.rest.chars().next().filter(|&first| first != ')') {
            self.take();
            if first == '|' {
                all.push(Vec::new());
                continue;
            }
            let part = self.part(first)?;
            let list = all.last_mut().ok_or(Unsupported("an empty list"))?;
            match (list.last_mut(), part) {
                (Some(Part::Plain(before)), Part::Plain(text)) => before.push_str(&text),
                (_, part) => list.push(part),
            }
        }
        Ok(all)
    }

    fn part(&mut self, first: char) -> Result<Part, Unsupported> {
        let atom = match first {
            '^' => return Ok(Part::Start),
            '$' => return Ok(Part::End),
            '(' => return self.group(),
            '[' => self.class()?,
            '\\' => self.escape()?,
            // A brace that is not a quantifier stands for itself.
            '{' | '}' | ']' => format!("\\{first}"),
            other => other.to_string(),
        };
        Ok(Part::Plain(atom + &self.quantifier()))
    }

    fn quantifier(&mut self) -> String {
        let mut found = match self.rest.chars().next() {
            Some(mark @ ('*' | '+' | '?')) => mark.to_string(),
            Some('{') => {
                let end = self.rest.find('}').map_or(0, |end| end + 1);
                let inner = self.rest.get(1..end.saturating_sub(1)).unwrap_or_default();
                let is_counted = inner.starts_with(|c: char| c.is_ascii_digit())
                    && inner.chars().all(|c| c.is_ascii_digit() || c == ',');
                if is_counted { self.rest[..end].to_owned() } else { String::new() }
            }
            _ => String::new(),
        };
        self.rest = &self.rest[found.len()..];
        if !found.is_empty() && self.skip("?") {
            // The language of a lazy quantifier is the same.
            found.truncate(found.len());
        }
        found
    }

    fn escape(&mut self) -> Result<String, Unsupported> {
        let next = self.take().ok_or(Unsupported("a backslash at its end"))?;
        match next {
            'b' | 'B' => Err(Unsupported("a word boundary (`\\b`)")),
            '1'..='9' | 'k' => Err(Unsupported("a reference to a group")),
            '<' | '>' => Ok(next.to_string()),
            '0' => Ok("\\x00".to_owned()),
            'p' | 'P' | 'u' | 'x' if self.rest.starts_with('{') => {
                let end = self.rest.find('}').map_or(self.rest.len(), |end| end + 1);
                let (braces, rest) = self.rest.split_at(end);
                self.rest = rest;
                Ok(format!("\\{next}{braces}"))
            }
            other => Ok(format!("\\{other}")),
        }
    }

    /// Reads a class. Rust's notation has operators and nested classes, so their marks are escaped.
    fn class(&mut self) -> Result<String, Unsupported> {
        let is_negative = self.skip("^");
        if self.skip("]") {
            return Ok(if is_negative { "[\\s\\S]" } else { "[^\\s\\S]" }.to_owned());
        }
        let mut found = String::from(if is_negative { "[^" } else { "[" });
        loop {
            match self.take().ok_or(Unsupported("a class without `]`"))? {
                ']' => return Ok(found + "]"),
                '\\' => {
                    let escaped = self.take().ok_or(Unsupported("a backslash at its end"))?;
                    // `\b` is a backspace in a class.
                    found.push_str(&if escaped == 'b' { "\\x08".to_owned() } else { format!("\\{escaped}") });
                }
                next @ ('[' | '&' | '~') => found.extend(['\\', next]),
                other => found.push(other),
            }
        }
    }

    fn group(&mut self) -> Result<Part, Unsupported> {
        if self.rest.starts_with("?<=") || self.rest.starts_with("?<!") {
            return Err(Unsupported("look-behind (`(?<=` or `(?<!`)"));
        }
        let ahead = [("?=", false), ("?!", true)].into_iter().find(|(mark, _)| self.skip(mark));
        if ahead.is_none() && !self.skip("?:") {
            if self.skip("?<") || self.skip("?P<") {
                let named = self.rest.split_once('>').ok_or(Unsupported("a name of a group without `>`"))?;
                self.rest = named.1;
            } else if self.rest.starts_with('?') {
                return Err(Unsupported("flags in a group"));
            }
        }
        self.depth += 1;
        if self.depth > 50 {
            return Err(Unsupported("more than 50 nested groups"));
        }
        let alternatives = self.alternatives()?;
        self.depth -= 1;
        if !self.skip(")") {
            return Err(Unsupported("an unmatched parenthesis"));
        }
        let quantifier = self.quantifier();
        if let Some((_, is_negative)) = ahead {
            return if quantifier.is_empty() {
                Ok(Part::Ahead { is_negative, alternatives })
            } else {
                Err(Unsupported("a quantifier behind look-ahead"))
            };
        }
        let plain: Option<Vec<String>> = alternatives.iter().map(|list| plain(list)).collect();
        Ok(match plain {
            Some(plain) => Part::Plain(format!("(?:{}){quantifier}", plain.join("|"))),
            None => Part::Group(alternatives, quantifier),
        })
    }
}

/// Returns the text of parts without anchors and look-ahead.
fn plain(list: &[Part]) -> Option<String> {
    list.iter().map(|part| if let Part::Plain(text) = part { Some(text.as_str()) } else { None }).collect()
}

fn anything() -> RegexAst {
    RegexAst::Regex("(?s:.*)".to_owned())
}

/// The texts of the parts, then `rest`. `is_start`: the parts are at the beginning of the whole text.
fn followed(list: &[Part], rest: RegexAst, is_start: bool) -> Result<RegexAst, Unsupported> {
    let Some((first, after)) = list.split_first() else { return Ok(rest) };
    if *first == Part::Start {
        return if is_start {
            followed(after, rest, true)
        } else {
            Err(Unsupported("`^` behind other characters"))
        };
    }
    let is_still_start = is_start && matches!(first, Part::Ahead { .. });
    let rest = followed(after, rest, is_still_start)?;
    Ok(match first {
        Part::Start => rest,
        Part::End => RegexAst::And(vec![RegexAst::EmptyString, rest]),
        Part::Plain(text) => RegexAst::Concat(vec![RegexAst::Regex(regex_to_lark(text, "dw")), rest]),
        Part::Ahead { is_negative, alternatives } => {
            let ahead = any(alternatives, &anything(), is_start)?;
            let ahead = if *is_negative { RegexAst::Not(Box::new(ahead)) } else { ahead };
            RegexAst::And(vec![ahead, rest])
        }
        Part::Group(alternatives, quantifier) => {
            let once = any(alternatives, &rest, is_start)?;
            match quantifier.as_str() {
                "" => once,
                "?" => RegexAst::Or(vec![once, rest]),
                _ => return Err(Unsupported("a repeated group with look-ahead or an anchor")),
            }
        }
    })
}

fn any(alternatives: &[Vec<Part>], rest: &RegexAst, is_start: bool) -> Result<RegexAst, Unsupported> {
    let each = alternatives.iter().map(|list| followed(list, rest.clone(), is_start));
    Ok(RegexAst::Or(each.collect::<Result<_, _>>()?))
}

fn parsed(pattern: &str) -> Result<Vec<Vec<Part>>, Unsupported> {
    let mut parser = Parser { rest: pattern, depth: 0 };
    let alternatives = parser.alternatives()?;
    if parser.rest.is_empty() { Ok(alternatives) } else { Err(Unsupported("an unmatched parenthesis")) }
}

/// The number of copies of the text behind the last group: each alternative of a group has its own.
fn copies(alternatives: &[Vec<Part>]) -> u64 {
    let part = |part: &Part| match part {
        Part::Group(alternatives, _) => copies(alternatives).saturating_add(1),
        Part::Ahead { alternatives, .. } => copies(alternatives),
        _ => 1,
    };
    let list = |list: &Vec<Part>| list.iter().map(part).fold(1, u64::saturating_mul);
    alternatives.iter().map(list).fold(0, u64::saturating_add)
}

/// Returns the texts in which the pattern occurs.
fn language(alternatives: &[Vec<Part>]) -> Result<RegexAst, Unsupported> {
    if copies(alternatives) > 200 {
        return Err(Unsupported("too many alternatives with look-ahead or anchors"));
    }
    let each = alternatives.iter().map(|list| {
        let starts = list.iter().find(|part| !matches!(part, Part::Ahead { .. })) == Some(&Part::Start);
        if starts {
            followed(list, anything(), true)
        } else {
            Ok(RegexAst::Concat(vec![anything(), followed(list, anything(), false)?]))
        }
    });
    Ok(RegexAst::Or(each.collect::<Result<_, _>>()?))
}

/// Whether llguidance reads the parts as ECMAScript does: it knows `^` at the beginning, and `$` at the end.
fn simple(alternatives: &[Vec<Part>]) -> Option<String> {
    let [list] = alternatives else {
        return Some(alternatives.iter().map(|list| plain(list)).collect::<Option<Vec<_>>>()?.join("|"));
    };
    let (start, list) = match list.split_first() {
        Some((Part::Start, rest)) => ("^", rest),
        _ => ("", list.as_slice()),
    };
    let (end, list) = match list.split_last() {
        Some((Part::End, rest)) => ("$", rest),
        _ => ("", list),
    };
    Some(format!("{start}{}{end}", plain(list)?))
}

/// Whether the pattern occurs in a text. False for a pattern that cannot be translated.
pub fn matches(pattern: &str, text: &str) -> bool {
    let matched = || {
        let mut builder = RegexBuilder::new();
        let regex = builder.mk(&language(&parsed(pattern).ok()?).ok()?).ok()?;
        Some(builder.to_regex_limited(regex, 100_000).ok()?.is_match(text))
    };
    matched().unwrap_or(false)
}

/// Returns a regular expression for a format beside a pattern with look-ahead.
fn format(name: &str) -> Option<&'static str> {
    const HOST: &str =
        r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*";
    Some(match name {
        "hostname" => HOST,
        "email" => r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~.-]+@[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?",
        "duration" => {
            r"P([0-9]+W|([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)(T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))?|T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))"
        }
        "date" => r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])",
        "uuid" => r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
        _ => return None,
    })
}

impl<'a> Preparer<'a> {
    /// Adds the pattern of strings. A pattern that llguidance does not read becomes a slot.
    pub fn with_pattern(
        &mut self,
        from: &'a Map<String, Value>,
        types: &[&str],
        place: &Place<'a>,
        mut schema: Value,
    ) -> Result<Value, SchemaError> {
        let Some(value) = from.get("pattern") else { return Ok(schema) };
        let here = place.to("pattern");
        let Some(pattern) = value.as_str().filter(|pattern| !pattern.starts_with(self.mark)) else {
            return Err(self.wrong(value, &here, "a regular expression"));
        };
        if !types.contains(&"string") {
            return Ok(schema);
        }
        let refused = |found: &str| SchemaError::Pattern {
            at: here.at.clone(),
            found: found.to_owned(),
            help:
                "describe the text with classes, groups, quantifiers, and look-ahead outside repeated groups"
                    .into(),
        };
        let alternatives = parsed(pattern).map_err(|found| refused(found.0))?;
        if let (Some(simple), Value::Object(object)) = (simple(&alternatives), &mut schema) {
            object.insert("pattern".to_owned(), simple.into());
            return Ok(schema);
        }
        let mut texts = vec![language(&alternatives).map_err(|found| refused(found.0))?];
        let length = |key| from.get(key).map(|value| self.count(value, &place.to(key))).transpose();
        let (least, most) = (length("minLength")?, length("maxLength")?);
        if least.is_some() || most.is_some() {
            let text = |count: Option<Value>| count.map(|count| count.to_string()).unwrap_or_default();
            let least = least.unwrap_or_else(|| 0.into());
            texts.push(RegexAst::Regex(format!("(?s:.{{{least},{}}})", text(most))));
        }
        let kept = schema.get("format").and_then(Value::as_str);
        if let Some(name) = kept {
            let help = "leave `format` out beside this pattern";
            let Some(regex) = format(name) else {
                return Err(place.to("format").unsupported("format", help));
            };
            texts.push(RegexAst::Regex(regex.to_owned()));
        }
        if from.contains_key("enum") || from.contains_key("const") {
            let help = "list only the values that match the pattern, and leave `pattern` out";
            return Err(here.unsupported("pattern", help));
        }
        // No text contains a byte that is not UTF-8, although `Not` would allow it.
        texts.push(anything());
        let text = RegexAst::JsonQuote(Box::new(RegexAst::And(texts)), JsonQuoteOptions::regular());
        let slot = self.slot(text);
        self.split(schema, types, &["string"], slot, from, place, "pattern")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_as_in_ecmascript() {
        for (pattern, yes, no) in [
            ("b", &["abc", "b"][..], &["", "ac"][..]),
            ("^a|b$", &["ax", "xb"], &["xa", "bx"]),
            ("^$|^(?:[0-9]{4})+$", &["", "12345678"], &["1", "123"]),
            ("^(?=.*\\d)[a-z\\d]{4,8}$", &["abc1"], &["abcd", "ab1", "abc-1"]),
            ("^(?!\\.)(?!.*\\.\\.)[a-z.]+@x$", &["a.b@x"], &[".a@x", "a..b@x"]),
            ("^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$", &["1.5", "-3", ".5"], &["", "+", "-."]),
            (
                "^P(?:(\\d+W)|(?!.*W)(?=\\d|T\\d)(\\d+Y)?(T(?=\\d)(\\d+H)?(\\d+S)?)?)$",
                &["P1Y", "P2W", "PT2H"],
                &["P", "P1YT", "PT"],
            ),
            ("^(?=.{1,5}$)a+$", &["aaa"], &["aaaaaa"]),
            ("a(?!b)", &["ac", "a", "aba"], &["ab"]),
            ("^[[&~x]+$", &["[&~x"], &["y"]),
            ("^[^]{2}$", &["\n\""], &["a"]),
            ("^{a}$", &["{a}"], &["a"]),
            ("^\\w\\/\\-\\<$", &["a/-<"], &["é/-<"]),
            ("^(?<year>\\d{4})$", &["2024"], &["20"]),
            ("^a+?b??$", &["aab"], &["b"]),
        ] {
            yes.iter().for_each(|text| assert!(matches(pattern, text), "{pattern}: {text}"));
            no.iter().for_each(|text| assert!(!matches(pattern, text), "{pattern}: {text}"));
        }
    }

    #[test]
    fn other_features_are_named() {
        for (pattern, found) in [
            ("(?<=a)b", "look-behind"),
            ("(a)\\1", "a reference to a group"),
            ("\\bword\\b", "a word boundary"),
            ("^(a(?=b))*$", "a repeated group"),
            ("a^b", "`^` behind"),
            ("(?i:a)", "flags"),
            ("a)", "unmatched"),
            ("(", "unmatched"),
            ("(?<a", "a name"),
            ("[a", "a class"),
            ("[a\\", "a backslash"),
            ("a\\", "a backslash"),
        ] {
            let result = parsed(pattern).and_then(|alternatives| match simple(&alternatives) {
                Some(_) => Ok(RegexAst::EmptyString),
                None => language(&alternatives),
            });
            assert!(matches!(&result, Err(why) if why.0.contains(found)), "{pattern}");
        }
    }
}
