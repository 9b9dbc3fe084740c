//! Rewrites a template for minijinja. Tracewright replaces statements, operators and slices that
//! minijinja does not support by equivalent code.

use std::ops::Range;

use crate::{collection_methods, operators, str_methods};

/// The name of the method that evaluates a slice such as `x[a:b:c]` in a rewritten template.
/// minijinja panics at `""[::-1]`. It never marks a slice of a string as `safe`.
pub const SLICE: &str = "__slice__";

/// The name of the method that replaces `x.items` without parentheses in a rewritten template. For
/// `x.items`, minijinja looks only for a key `items` in the dictionary.
pub const ATTRIBUTE: &str = "__getattr__";

/// The name of the method that evaluates `loop.cycle(…)` in a rewritten template. minijinja panics
/// if the call has no arguments.
pub const CYCLE: &str = "__cycle__";

/// The filter that the rewritten template applies to every named value. The filter rejects values
/// beyond the limits.
pub const BOUNDED: &str = "__bounded__";

/// The filter that the rewritten template applies to the list of a loop. In minijinja loops, `none`
/// is an empty list, and a string has no length.
pub const LOOPED: &str = "__looped__";

/// A rewritten template that minijinja can read.
pub struct Translated {
    pub text: String,
    /// The largest number of bytes of template text between two tags.
    pub between: usize,
}

#[derive(Debug)]
pub struct Tag {
    /// The position of the tag in the original template.
    pub from: Range<usize>,
    pub to: Range<usize>,
    /// The line number of the tag, from 1.
    pub line: usize,
    /// The number of operators in the tag. minijinja recurses for each operator, and each operator
    /// can enlarge a text.
    pub operators: usize,
    /// The reason why minijinja would interpret the tag differently from Jinja, if no rewriting can
    /// prevent the difference.
    pub unknown: Option<String>,
}

/// Rewrites the tags of a template, and returns the old and new position of each tag. The function
/// makes these changes:
/// - `{% generation %}` … `{% endgeneration %}`, which marks the model's answers for training,
///   becomes the scope `{% with %}` … `{% endwith %}`.
/// - `x[a:b:c]` becomes `x.__slice__(a, b, c)`, and `x[a:b]` becomes `x.__slice__(a, b)`.
/// - Operators become filters; see [`operators`].
/// - `x.items` without a call becomes `x.__getattr__('items')`. Every other name of a Python method
///   is rewritten in the same way as `items`.
/// - The list of a `for` gets the filter [`LOOPED`].
/// - A `raw` block keeps its text. A `raw` block gets trim signs with which minijinja trims the
///   text like Jinja; see [`Raw`].
/// - Named values, and results of operators within brackets, get the filter [`BOUNDED`]. minijinja
///   does not limit concatenation. Only a named value, an argument or an item of a list can double
///   repeatedly, so the filter checks each value that can double.
pub fn translate(source: &str) -> (Translated, Vec<Tag>) {
    let mut out = String::with_capacity(source.len());
    let (mut at, mut between, mut line) = (0, 0, 1);
    let lines = |text: &str| text.matches('\n').count();
    let mut tags = Vec::new();
    let begins = |text: &str| ["{{", "{%", "{#"].iter().any(|tag| text.starts_with(tag));
    // The loop searches for all three kinds of tags together. A separate search for a missing kind
    // would read the rest of the template once for each tag.
    while let Some((before, _)) =
        source[at..].match_indices('{').find(|(before, _)| begins(&source[at + before..]))
    {
        out.push_str(&source[at..at + before]);
        between = between.max(before);
        line += lines(&source[at..at + before]);
        at += before;
        let start = out.len();
        if let Some(raw) = Raw::at(&source[at..]) {
            out.push_str(&raw.translated());
            between = between.max(raw.text.unwrap_or_default().len());
            let from = at..at + raw.len;
            at = from.end;
            let unknown = raw.text.err().map(str::to_owned);
            tags.push(Tag { from, to: start..out.len(), line, operators: 0, unknown });
            line += lines(&out[start..]);
            continue;
        }
        let tag = &source[at..at + tag_len(&source[at..])];
        let name = tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+']).trim();
        let (mut operators, mut unknown) = (0, None);
        match name {
            "generation" => out.push_str(&tag.replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            // At the end of a template, Jinja accepts an empty comment without an end, like a `raw`
            // block without an end.
            _ if matches!(tag.strip_suffix('\n').unwrap_or(tag), "{#" | "{#-" | "{#+") => {
                out.push_str(&format!("{} #}}", tag.trim_end()));
            }
            _ if tag.starts_with("{#") => out.push_str(tag),
            _ => {
                operators = operators_in(tag);
                let (opens, inner) = tag.split_at(2);
                let closes = if opens == "{{" { "}}" } else { "%}" };
                let (inner, end) = inner.strip_suffix(closes).map_or((inner, ""), |inner| (inner, closes));
                if opens == "{%" {
                    unknown = unknown_default(name);
                }
                let is_statement = opens == "{%";
                let inner = if is_statement { statement(inner) } else { expression(inner) };
                let inner = operators::with_filters(&inner, is_statement);
                out.push_str(&format!("{opens}{inner}{end}"));
            }
        }
        let from = at..at + tag.len();
        at = from.end;
        tags.push(Tag { from, to: start..out.len(), line, operators, unknown });
        line += lines(&out[start..]);
    }
    out.push_str(&source[at..]);
    (Translated { text: out, between: between.max(source.len() - at) }, tags)
}

/// Whether a tag can read a variable. A tag can read a variable if the variable's name occurs
/// outside of strings, and if the name is no attribute, no filter and no target of `set`.
pub fn reads(tag: &str, name: &str) -> bool {
    if tag.starts_with("{#") || Raw::at(tag).is_some() {
        return false;
    }
    let mut scan = Scan::default();
    let code = tag.chars().map(|c| if scan.is_code(c) { c } else { '"' }).collect::<String>();
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let set = code.split(|c| !is_part(c)).find(|word| !word.is_empty()) == Some("set");
    let mut at = 0;
    for (index, word) in code.split(|c| !is_part(c)).filter(|word| !word.is_empty()).enumerate() {
        at += code[at..].find(word).unwrap_or(0);
        let before = code[..at].trim_end();
        at += word.len();
        if word == name && !before.ends_with(['.', '|']) && !(set && index == 1) {
            return true;
        }
    }
    false
}

/// Returns an error message if the default of a macro's argument refers to another argument.
/// minijinja evaluates defaults before arguments.
fn unknown_default(statement: &str) -> Option<String> {
    let (keyword, rest) = statement.split_once(char::is_whitespace)?;
    let (_, arguments) = rest.split_once('(').filter(|_| keyword == "macro")?;
    let mut scan = Scan::inside();
    let mut depth = 0;
    let mut parts = vec![String::new()];
    for c in arguments.chars() {
        let code = scan.is_code(c);
        match c {
            '(' | '[' | '{' if code => depth += 1,
            ')' | ']' | '}' if code => depth -= 1,
            ',' if code && depth == 0 => parts.push(String::new()),
            // Characters within a string are no names.
            _ if let Some(part) = parts.last_mut() => part.push(if code { c } else { '"' }),
            _ => {}
        }
    }
    let named: Vec<_> = parts.iter().map(|part| part.split_once('=').unwrap_or((part, ""))).collect();
    let names: Vec<_> = named.iter().map(|(name, _)| name.trim()).collect();
    let word = |c: char| !c.is_alphanumeric() && c != '_';
    let other = |default: &str| {
        default.split(word).find(|word| !word.is_empty() && names.contains(word)).map(str::to_owned)
    };
    let (name, other) = named.iter().find_map(|(name, default)| Some((name.trim(), other(default)?)))?;
    Some(format!("the default of `{name}` is made of the argument `{other}`, which is not supported"))
}

/// A `raw` block of a template. Jinja trims the text of the block at a tag with a `-`. Jinja also
/// removes white space before an `endraw` at the beginning of a line. Jinja keeps a line end after
/// the tag `raw`, but removes a line end after other tags.
struct Raw<'a> {
    /// The trim sign of the tag `raw` for the text before the block: `-`, `+` or nothing.
    before: &'a str,
    /// The trimmed text of the block, or the reason why Jinja rejects the block.
    text: Result<&'a str, &'static str>,
    /// The trim sign of the tag `endraw` for the text after the block: `-`, `+` or nothing.
    behind: &'a str,
    /// The number of bytes of the block, including the two tags.
    len: usize,
}

impl<'a> Raw<'a> {
    /// Finds the `raw` block at the beginning of a text.
    fn at(source: &'a str) -> Option<Self> {
        let (before, tag) = after_sign(source.strip_prefix("{%")?);
        let tag = tag.trim_start().strip_prefix("raw")?.trim_start();
        let (sign, tag) = after_sign(tag);
        let inner = tag.strip_prefix("%}")?;
        let first = source.len() - inner.len();
        let no_block = |why| Some(Self { before, text: Err(why), behind: "", len: first });
        let inner = match sign {
            "+" => return no_block("the first tag of a `raw` block ends in `+%}`, expected `%}` or `-%}`"),
            "-" => inner.trim_start_matches(str_methods::is_space),
            _ => inner,
        };
        // At the end of a template, Jinja accepts an empty block without an `endraw`. A single line
        // end is also empty.
        if matches!(inner, "" | "\n") {
            return Some(Self { before, text: Ok(""), behind: "", len: source.len() });
        }
        let end = inner.match_indices("{%").find_map(|(at, _)| {
            let (sign, tag) = after_sign(&inner[at + 2..]);
            let tag = tag.trim_start().strip_prefix("endraw")?.trim_start();
            let (behind, tag) = after_sign(tag);
            Some((&inner[..at], sign, behind, tag.strip_prefix("%}")?))
        });
        let Some((text, sign, behind, rest)) = end else {
            return no_block("a `raw` block has no end, expected `{% endraw %}`");
        };
        let line = text.rfind('\n').map_or(text.len(), |end| end + 1);
        let text = match sign {
            "-" => text.trim_end_matches(str_methods::is_space),
            "" if text[line..].chars().all(str_methods::is_space) => &text[..line],
            _ => text,
        };
        Some(Self { before, text: Ok(text), behind, len: source.len() - rest.len() })
    }

    /// The rewritten block, with signs that prevent minijinja from trimming.
    fn translated(&self) -> String {
        let Self { before, behind, .. } = self;
        let text = self.text.unwrap_or_default();
        format!("{{%{before} raw +%}}{text}{{%+ endraw {behind}%}}")
    }
}

/// Splits off a trim sign at the beginning of a text.
fn after_sign(text: &str) -> (&str, &str) {
    text.split_at(usize::from(text.starts_with(['-', '+'])))
}

/// The number of constructs in a tag for which minijinja recurses. minijinja recurses for
/// operators, including words such as `and`, and for calls, filters and attributes.
fn operators_in(tag: &str) -> usize {
    let mut scan = Scan::default();
    let (mut count, mut word) = (0, String::new());
    for c in tag.chars() {
        let code = scan.is_code(c);
        if code && c.is_alphanumeric() {
            word.push(c);
            continue;
        }
        let is_operator = ["and", "or", "not", "in", "is", "if", "else"].contains(&&*word);
        count += usize::from(is_operator) + usize::from(code && "+-*/%~|.<>=![({".contains(c));
        word.clear();
    }
    count
}

fn statement(inner: &str) -> String {
    let text = inner.trim_matches(['-', '+']).trim();
    let Some((keyword, rest)) = text.split_once(char::is_whitespace) else { return expression(inner) };
    if keyword == "set" && assignment(rest).is_none() {
        return inner.to_owned(); // a block up to `endset`, whose target can be an attribute
    }
    let rewritten = match (keyword, assignment(rest)) {
        ("set", Some(equals)) if !rest[equals + 1..].trim().is_empty() => {
            let (target, value) = (&rest[..equals], rest[equals + 1..].trim());
            format!("{target}= ({})|{BOUNDED}", expression(value))
        }
        // The assignments of a `with` have the same syntax as the arguments of a call.
        ("with", Some(_)) => {
            let arguments = expression(&format!("({rest})"));
            arguments[1..arguments.len() - 1].to_owned()
        }
        ("for", _) if let Some(list) = list_of_loop(rest) => {
            let (target, list, condition) =
                (&rest[..list.start], rest[list.clone()].trim(), &rest[list.end..]);
            format!("{target} ({})|{LOOPED} {}", expression(list), expression(condition))
        }
        _ => return expression(inner),
    };
    let at = rest.as_ptr() as usize - inner.as_ptr() as usize;
    format!("{}{rewritten}{}", &inner[..at], &inner[at + rest.len()..])
}

/// The position of the list in a `for` tag. The list is after the first `in`, and before `if` or `recursive`.
fn list_of_loop(text: &str) -> Option<Range<usize>> {
    let mut scan = Scan::inside();
    let (mut depth, mut word, mut start) = (0, None, None);
    for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
        let code = scan.is_code(c);
        if code && (c.is_alphanumeric() || c == '_') {
            word.get_or_insert(at);
            continue;
        }
        match word.take().filter(|_| depth == 0).map(|from| (from, &text[from..at])) {
            Some((_, "in")) if start.is_none() => start = Some(at),
            Some((end, "if" | "recursive")) if start.is_some() => return Some(start?..end),
            _ => {}
        }
        depth += if code { nesting(c) } else { 0 };
    }
    Some(start?..text.len())
}

/// The position of the `=` in an assignment, or `None` if the text is no assignment.
fn assignment(text: &str) -> Option<usize> {
    let mut scan = Scan::inside();
    let (mut depth, mut before) = (0, ' ');
    for (at, c) in text.char_indices() {
        if !scan.is_code(c) {
            continue;
        }
        depth += nesting(c);
        let is_sign = c == '=' && depth == 0;
        if is_sign && !"=!<>".contains(before) && !text[at + 1..].starts_with('=') {
            return Some(at);
        }
        before = c;
    }
    None
}

/// Returns by how much a character changes the depth of brackets.
fn nesting(c: char) -> i32 {
    i32::from("([{".contains(c)) - i32::from(")]}".contains(c))
}

/// The length of the tag at the beginning of a text, in bytes. Strings in the tag may contain the characters
/// that end a tag.
fn tag_len(tag: &str) -> usize {
    let end = match &tag[..2] {
        "{{" => "}}",
        "{%" => "%}",
        _ => return tag[2..].find("#}").map_or(tag.len(), |end| end + 4),
    };
    let mut scan = Scan::default();
    let closes = |&(at, c): &(usize, char)| scan.is_code(c) && scan.depth <= 0 && tag[at..].starts_with(end);
    tag.char_indices().skip(2).find(closes).map_or(tag.len(), |(at, _)| at + 2)
}

struct Bracket {
    /// The position of the opening bracket in the rewritten text.
    at: usize,
    kind: char,
    colons: Vec<usize>,
    /// The position after the last comma that the scan has found within the brackets.
    part: usize,
    /// Whether an operator follows the last comma that the scan has found within the brackets.
    joins: bool,
}

impl Bracket {
    /// Adds the filter [`BOUNDED`] to the text after the last comma within the brackets, if this
    /// text contains operators.
    fn bound(&mut self, out: &mut String) {
        let part = &out[self.part..];
        let is_slice = self.kind == '[' && !self.colons.is_empty();
        if std::mem::take(&mut self.joins) && !is_slice && !part.trim_start().starts_with('*') {
            // The value follows the name of an argument or a dictionary key.
            let named = match self.kind {
                '(' => assignment(part),
                '{' => self.colons.iter().find(|colon| **colon >= self.part).map(|colon| colon - self.part),
                _ => None,
            };
            let value = self.part + named.map_or(0, |at| at + 1);
            let bounded = format!(" ({})|{BOUNDED}", out[value..].trim());
            out.truncate(value);
            out.push_str(&bounded);
        }
    }
}

/// Rewrites the slices of an expression, and adds the filter [`BOUNDED`] to
/// results of operators within brackets. The function rewrites the innermost brackets first.
fn expression(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut scan = Scan::inside();
    let mut open: Vec<Bracket> = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let code = scan.is_code(c);
        rest = &rest[c.len_utf8()..];
        match c {
            '.' if code => {
                let name = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                let (name, behind) = rest.split_at(name);
                let rewritten = if behind.trim_start().starts_with('(') {
                    (name == "cycle").then(|| format!(".{CYCLE}"))
                } else {
                    collection_methods::is_method(name).then(|| format!(".{ATTRIBUTE}('{name}')"))
                };
                if let Some(rewritten) = rewritten {
                    out.push_str(&rewritten);
                    rest = behind;
                    continue;
                }
            }
            '[' | '(' | '{' if code => {
                let (at, part) = (out.len(), out.len() + 1);
                open.push(Bracket { at, kind: c, colons: Vec::new(), part, joins: false });
            }
            ':' if code => {
                if let Some(bracket) = open.last_mut() {
                    bracket.colons.push(out.len());
                }
            }
            '~' | '+' | '*' if code => {
                if let Some(bracket) = open.last_mut() {
                    bracket.joins = true;
                }
            }
            ',' if code => {
                if let Some(bracket) = open.last_mut() {
                    bracket.bound(&mut out);
                    bracket.part = out.len() + 1;
                }
            }
            ']' | ')' | '}' if code => {
                if let Some(mut bracket) = open.pop() {
                    bracket.bound(&mut out);
                    let slice = match bracket.colons[..] {
                        [first] => Some((first, None)),
                        [first, second] => Some((first, Some(second))),
                        _ => None,
                    };
                    if let Bracket { at, kind: '[', .. } = bracket
                        && let Some((first, second)) = slice
                    {
                        let part = |part: &str| {
                            if part.trim().is_empty() { "none" } else { part.trim() }.to_string()
                        };
                        let step = second.map(|second| part(&out[second + 1..]));
                        let stop = part(&out[first + 1..second.unwrap_or(out.len())]);
                        let parts = [Some(part(&out[at + 1..first])), Some(stop), step];
                        out.truncate(at);
                        let parts: Vec<_> = parts.into_iter().flatten().collect();
                        out.push_str(&format!(".{SLICE}({})", parts.join(", ")));
                        continue;
                    }
                }
            }
            _ => {}
        }
        out.push(c);
    }
    out
}

/// Scans a tag to distinguish code from strings, and counts the open braces of dictionaries.
#[derive(Default)]
struct Scan {
    quote: Option<char>,
    escaped: bool,
    depth: i32,
}

impl Scan {
    /// Creates a scan that begins inside a tag. Every brace inside a tag belongs to a dictionary.
    fn inside() -> Self {
        Self { depth: 1, ..Self::default() }
    }

    /// Reads the next character, and returns whether the character is outside of strings. For the
    /// brace that ends the tag, the function returns `false`.
    fn is_code(&mut self, c: char) -> bool {
        if let Some(quote) = self.quote {
            let ends = c == quote && !self.escaped;
            self.escaped = c == '\\' && !self.escaped;
            if ends {
                self.quote = None;
            }
            return false;
        }
        match c {
            '"' | '\'' => self.quote = Some(c),
            '{' => self.depth += 1,
            '}' if self.depth > 0 => {
                self.depth -= 1;
                return self.depth > 0; // this brace closed a dictionary, not the tag
            }
            _ => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_with_a_step_and_formats_are_rewritten() {
        for (text, expected) in [
            ("{{ x[::-1] }}", "{{ x.__slice__(none, none, -1) }}"),
            ("{{ x[1:] }}{{ x[:'a:b'] }}", "{{ x.__slice__(1, none) }}{{ x.__slice__(none, 'a:b') }}"),
            (
                "{{ x[y[::2][0]:f(':', {'a': 1, 'b': 2}):3] }}",
                "{{ x.__slice__(y.__slice__(none, none, 2)[0], f(':', {'a': 1, 'b': 2}), 3) }}",
            ),
            ("[::-1] {# x[::-1] #} {{ '[::-1] }}' }}", "[::-1] {# x[::-1] #} {{ '[::-1] }}' }}"),
            ("{{ [{'a': {'b': 1}}, {'c': 2}] }}[::]", "{{ [{'a': {'b': 1}}, {'c': 2}] }}[::]"),
            ("{% generation_x %}{%+ generation", "{% generation_x %}{%+ with"),
            ("{{ 'a%s' % x.y[0] ~ 'b' }}", "{{ 'a%s'|__rem__(x.y[0])|__concat__('b') }}"),
            (
                "{{ f(a ~ b, c=d + e, g=1) }}",
                "{{ f( (a|__concat__(b))|__bounded__, c= (d|__add__(e))|__bounded__, g=1) }}",
            ),
            (
                "{{ [a + b][c + 1:] == 'x+y' }}",
                "{{ [ (a|__add__(b))|__bounded__].__slice__(c|__add__(1), none) == 'x+y' }}",
            ),
            ("{{ f(*a, **b) or (c == d * 2) }}", "{{ f(*a, **b) or ( (c == d|__mul__(2))|__bounded__) }}"),
            ("{{ {'a': b ~ c, 'd': e} }}", "{{ {'a': (b|__concat__(c))|__bounded__, 'd': e} }}"),
            (
                "{%- set x.y = 'a=b' if c == 1 else d -%}",
                "{%- set x.y = ('a=b' if c == 1 else d)|__bounded__ -%}",
            ),
            (
                "{% set é = 1 %}{% for ü in x %}",
                "{% set é = (1)|__bounded__ %}{% for ü in (x)|__looped__  %}",
            ),
            ("{% set a, b = 1, 2 %}{% set c %}", "{% set a, b = (1, 2)|__bounded__ %}{% set c %}"),
            (
                "{% for a, b in x['in'] if a in c %}{%- for a in [b ~ c] recursive -%}{% for a in b %}",
                "{% for a, b in (x['in'])|__looped__ if a in c %}{%- for a in ([ (b|__concat__(c))|__bounded__])|__looped__ recursive -%}{% for a in (b)|__looped__  %}",
            ),
            ("{% with a = b ~ c, d = e %}", "{% with a = (b|__concat__(c))|__bounded__, d = e %}"),
            (
                "{{ '%s %d' % (x, -1 % 2)|f('%') + 5 % 3 }}",
                "{{ '%s %d'|__rem__((x, -1|__rem__(2))|f('%'))|__add__(5|__rem__(3)) }}",
            ),
            (
                "{% set x = '%s' % -y if z %}{% set x = 'a' %}",
                "{% set x = ('%s'|__rem__(y|__neg__) if z)|__bounded__ %}{% set x = ('a')|__bounded__ %}",
            ),
            ("{%- endgeneration -%}x", "{%- endwith -%}x"),
            (
                "{{ x.items.y.title|f }}{{ x.items () }}{{ 'x.items' }}{{ x.item }}",
                "{{ x.__getattr__('items').y.__getattr__('title')|f }}{{ x.items() }}{{ 'x.items' }}{{ x.item }}",
            ),
            (
                "{%- raw %}\n{{ x[::-1] }}{{ '%s' % x }}{% generation %}\n  {% endraw -%}{{ y[::2] }}",
                "{%- raw +%}\n{{ x[::-1] }}{{ '%s' % x }}{% generation %}\n{%+ endraw -%}{{ y.__slice__(none, none, 2) }}",
            ),
            (
                "{#}{% raw %}#}{{ '{% raw %}' ~ x[::2] }}",
                "{#}{% raw %}#}{{ '{% raw %}'|__concat__(x.__slice__(none, none, 2)) }}",
            ),
            (
                "{% set x.items = y.items %}{% set x.items %}",
                "{% set x.items = (y.__getattr__('items'))|__bounded__ %}{% set x.items %}",
            ),
        ] {
            assert_eq!(translate(text).0.text, expected);
        }
    }
}
