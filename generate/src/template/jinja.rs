//! What Jinja has and the engine has not, said in other words that it has.

use std::borrow::Cow;

use files::limits;
use minijinja::formatting::{self, FormatStyle};
use minijinja::tests::is_divisibleby;
use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

/// The method that a slice with a step becomes: the engine panics at `""[::-1]`.
pub const SLICE: &str = "__slice__";

/// The method that `'…' % x` becomes: to the engine `%` is for numbers.
pub const PERCENT: &str = "__mod__";

/// The filter that refuses what has grown too large, around all that is kept under a name.
pub const BOUNDED: &str = "__bounded__";

/// A template in words of the engine, and how much of it there is at most in one place.
pub struct Translated {
    /// The template.
    pub source: String,
    /// Operators in one tag. The engine nests as deep as there are, and a text may grow by as many times.
    pub operators: usize,
    /// Bytes between two tags.
    pub between: usize,
}

/// Rewrites the tags of a template:
/// - `{% generation %}` … `{% endgeneration %}`, which marks the model's own words for training, becomes the plain
///   scope `{% with %}` … `{% endwith %}`;
/// - `x[a:b:c]` becomes `x.__slice__(a, b, c)`;
/// - `'…' % x` becomes `'…'.__mod__(x)`;
/// - what gets a name, and what operators make within brackets, passes [`BOUNDED`]: the engine has no limit on what it
///   joins, and what doubles itself must be given a name, or be an argument or an item, before it does so again.
pub fn translate(source: &str) -> Translated {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let (mut operators, mut between) = (0, 0);
    let begins = |text: &str| ["{{", "{%", "{#"].iter().any(|tag| text.starts_with(tag));
    // One look for all of them: a look for each would go to the end for what is not there, once for each tag.
    while let Some((at, _)) = rest.match_indices('{').find(|(at, _)| begins(&rest[*at..])) {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        between = between.max(before.len());
        let tag = &tag[..tag_len(tag)];
        let name = tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+']).trim();
        match name {
            "generation" => out.push_str(&tag.replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            _ if tag.starts_with("{#") => out.push_str(tag),
            _ => {
                operators = operators.max(operators_in(tag));
                let (opens, inner) = tag.split_at(2);
                let closes = if opens == "{{" { "}}" } else { "%}" };
                let (inner, end) = inner.strip_suffix(closes).map_or((inner, ""), |inner| (inner, closes));
                let inner = if opens == "{{" { expression(inner) } else { statement(inner) };
                out.push_str(&format!("{opens}{inner}{end}"));
            }
        }
        rest = &rest[at + tag.len()..];
    }
    Translated { source: out + rest, operators, between: between.max(rest.len()) }
}

/// How many operators there are in a tag, words among them, and what else the engine nests: calls, filters, parts of parts.
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

/// Rewrites a statement.
fn statement(inner: &str) -> String {
    let text = inner.trim_matches(['-', '+']).trim();
    let Some((keyword, rest)) = text.split_once(char::is_whitespace) else { return expression(inner) };
    let rewritten = match (keyword, assignment(rest)) {
        ("set", Some(equals)) => {
            let (target, value) = (&rest[..equals], rest[equals + 1..].trim());
            format!("{target}= ({})|{BOUNDED}", expression(value))
        }
        // As arguments of a call.
        ("with", Some(_)) => {
            let arguments = expression(&format!("({rest})"));
            arguments[1..arguments.len() - 1].to_owned()
        }
        _ => return expression(inner),
    };
    let at = rest.as_ptr() as usize - inner.as_ptr() as usize;
    format!("{}{rewritten}{}", &inner[..at], &inner[at + rest.len()..])
}

/// Where `=` stands in an assignment.
fn assignment(text: &str) -> Option<usize> {
    let mut scan = Scan::inside();
    let (mut depth, mut before) = (0, ' ');
    for (at, c) in text.char_indices() {
        if !scan.is_code(c) {
            continue;
        }
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '=' if depth == 0 && !"=!<>".contains(before) && !text[at + 1..].starts_with('=') => {
                return Some(at);
            }
            _ => {}
        }
        before = c;
    }
    None
}

/// The length of the tag that a text begins with; a string inside may hold its end.
fn tag_len(tag: &str) -> usize {
    let end = match &tag[..2] {
        "{{" => "}}",
        "{%" => "%}",
        _ => return tag.find("#}").map_or(tag.len(), |end| end + 2),
    };
    let mut scan = Scan::default();
    let closes = |&(at, c): &(usize, char)| scan.is_code(c) && scan.depth <= 0 && tag[at..].starts_with(end);
    tag.char_indices().skip(2).find(closes).map_or(tag.len(), |(at, _)| at + 2)
}

/// An open bracket of an expression.
struct Bracket {
    /// Where it stands in what is written.
    at: usize,
    kind: char,
    /// Where its colons stand.
    colons: Vec<usize>,
    /// Where what follows its last comma begins.
    part: usize,
    /// Whether operators join something in that part.
    joins: bool,
}

impl Bracket {
    /// Has what operators made in the last part pass [`BOUNDED`].
    fn bound(&mut self, out: &mut String) {
        let part = &out[self.part..];
        let is_slice = self.kind == '[' && !self.colons.is_empty();
        if std::mem::take(&mut self.joins) && !is_slice && !part.trim_start().starts_with('*') {
            // Behind the name of an argument, or behind a key.
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

/// Rewrites the slices and the formats of an expression, the innermost first, and bounds what is joined within brackets.
fn expression(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut scan = Scan::inside();
    let mut open: Vec<Bracket> = Vec::new();
    let mut after_string = false;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let was_string = scan.quote.is_some();
        let code = scan.is_code(c);
        rest = &rest[c.len_utf8()..];
        match c {
            '%' if code && after_string && !rest.starts_with('}') => {
                let operand = rest[..operand_len(rest)].trim_end();
                out.truncate(out.trim_end().len());
                out.push_str(&format!(".{PERCENT}({})", expression(operand.trim_start())));
                rest = &rest[operand.len()..];
                continue;
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
                    if let Bracket { at, kind: '[', colons, .. } = bracket
                        && let [first, second] = colons[..]
                    {
                        let part = |part: &str| {
                            if part.trim().is_empty() { "none" } else { part.trim() }.to_string()
                        };
                        let parts =
                            [&out[at + 1..first], &out[first + 1..second], &out[second + 1..]].map(part);
                        out.truncate(at);
                        out.push_str(&format!(".{SLICE}({})", parts.join(", ")));
                        continue;
                    }
                }
            }
            _ => {}
        }
        after_string = (was_string && scan.quote.is_none()) || (after_string && c.is_whitespace());
        out.push(c);
    }
    out
}

/// The length of what `%` binds to: a bracket, a string or a word, and all that hangs on it.
fn operand_len(text: &str) -> usize {
    let mut scan = Scan::inside();
    let (mut depth, mut seen, mut gap) = (0, false, false);
    for (at, c) in text.char_indices() {
        let in_string = scan.quote.is_some();
        if !scan.is_code(c) || in_string {
            continue;
        }
        match c {
            '(' | '[' | '{' if depth > 0 || !gap || !seen => depth += 1,
            ')' | ']' | '}' if depth > 0 => depth -= 1,
            _ if depth > 0 => {}
            c if c.is_whitespace() => {
                gap = seen;
                continue;
            }
            '.' | '|' => {
                (seen, gap) = (false, false); // the name that follows belongs to it
                continue;
            }
            '-' | '+' if !seen => continue,
            c if (c.is_alphanumeric() || "_\"'".contains(c)) && !gap => {}
            _ => return at,
        }
        (seen, gap) = (true, false);
    }
    text.len()
}

/// Tells code from strings, and how many braces of dictionaries are open.
#[derive(Default)]
struct Scan {
    quote: Option<char>,
    escaped: bool,
    depth: i32,
}

impl Scan {
    /// Of what stands within a tag, where every brace is that of a dictionary.
    fn inside() -> Self {
        Self { depth: 1, ..Self::default() }
    }

    /// Takes the next character: is it outside of strings? A closing brace counts before it is asked about.
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

/// Python's `value[start:stop:step]` on strings and lists.
pub fn slice(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (start, stop, step): (Option<i64>, Option<i64>, Option<i64>) = from_args(args)?;
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "slice step cannot be zero"));
    }
    match value.kind() {
        ValueKind::String => {
            let text: Vec<char> = value.as_str().unwrap_or_default().chars().collect();
            Ok(Value::from(steps(text.len(), start, stop, step).map(|i| text[i]).collect::<String>()))
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            Ok(Value::from(
                steps(items.len(), start, stop, step).map(|i| items[i].clone()).collect::<Vec<_>>(),
            ))
        }
        other => {
            Err(Error::new(ErrorKind::InvalidOperation, format!("value of type {other} cannot be sliced")))
        }
    }
}

/// Python's `text % value`, where a tuple is several values.
pub fn percent(state: &mut State, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (argument,): (Value,) = from_args(args)?;
    let mut all = vec![value.clone()];
    if argument.is_tuple() {
        all.extend(argument.try_iter()?);
    } else {
        all.push(argument);
    }
    state.apply_filter("format", &all)
}

/// Jinja's `format`, Python's `text % values`.
pub fn format(text: &str, values: Rest<Value>) -> Result<String, Error> {
    check_format(text, &values)?;
    formatting::format(FormatStyle::Printf, text, &values)
}

/// Whether no value is asked to be wider than a text may be: by a number in the format, or by a `*` and a value; and whether
/// keys are ASCII: minijinja 3.0.5 panics in the middle of another character, that of a key without end too.
pub fn check_format(text: &str, values: &[Value]) -> Result<(), Error> {
    const DIGITS: usize = 7;
    let wide =
        |width: &Value| i64::try_from(width.clone()).is_ok_and(|width| width.unsigned_abs() > limits::PROMPT);
    let without_signs = text.replace("%%", "");
    let mut keys = without_signs.split("%(").skip(1).filter_map(|rest| rest.split(')').next());
    if let Some(key) = keys.find(|key| !key.is_ascii()) {
        let message = format!("a key in a format is not ASCII, which is not supported: `{key}`");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let long = text.split(|c: char| !c.is_ascii_digit()).any(|number| number.len() > DIGITS);
    match long || (text.contains('*') && values.iter().any(wide)) {
        true => Err(Error::new(ErrorKind::InvalidOperation, "a width in a format is too large")),
        false => Ok(()),
    }
}

/// How much of a value there may be.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Bytes of texts, those within lists and dictionaries included.
    pub bytes: usize,
}

impl Room {
    /// The value, if there is room for it.
    pub fn bounded(self, value: Value) -> Result<Value, Error> {
        let (mut bytes, mut items) = (self.bytes, limits::TEMPLATE_ITEMS);
        match takes(&value, 0, &mut bytes, &mut items) {
            Some(()) => Ok(value),
            None => Err(too_large("a value becomes too large or is nested too deep")),
        }
    }

    /// Whether a list may be joined with a text between its items.
    pub fn check_join(self, list: &Value, between: usize) -> Result<(), Error> {
        self.bounded(list.clone())?;
        let items = list.len().unwrap_or(limits::TEMPLATE_ITEMS).saturating_mul(between);
        if items > self.bytes { Err(too_large("a list becomes too long as a text")) } else { Ok(()) }
    }

    /// Whether each occurrence of a text may be replaced by another.
    pub fn check_replace(self, text: &str, from: &str, to: &str) -> Result<(), Error> {
        // Nothing stands between any two characters, and at both ends.
        let count = if from.is_empty() { text.len() + 1 } else { text.matches(from).count() };
        match count.saturating_mul(to.len()) > self.bytes {
            true => Err(too_large("a text becomes too long where a part is replaced")),
            false => Ok(()),
        }
    }
}

/// Takes the room that a value needs; nothing if there is not enough.
fn takes(value: &Value, depth: usize, bytes: &mut usize, items: &mut usize) -> Option<()> {
    *items = items.checked_sub(1)?;
    if let Some(text) = value.as_str() {
        *bytes = bytes.checked_sub(text.len())?;
        return Some(());
    }
    let is_map = match value.kind() {
        ValueKind::Map => true,
        ValueKind::Seq | ValueKind::Iterable => false,
        _ => return Some(()),
    };
    if depth > limits::TEMPLATE_DEPTH || value.len().is_some_and(|len| len > *items) {
        return None;
    }
    for item in value.try_iter().ok()? {
        takes(&item, depth + 1, bytes, items)?;
        if is_map && let Ok(part) = value.get_item(&item) {
            takes(&part, depth + 1, bytes, items)?;
        }
    }
    Some(())
}

fn too_large(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// What stands between others or replaces them, as a text. A list or a dictionary has no place there, and its text no end.
pub fn as_text(value: &Value) -> Result<Cow<'_, str>, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.as_str().unwrap_or_default().into()),
        ValueKind::Number | ValueKind::Bool | ValueKind::None | ValueKind::Undefined => {
            Ok(value.to_string().into())
        }
        kind => Err(Error::new(ErrorKind::InvalidOperation, format!("expected a text, found a {kind}"))),
    }
}

/// The bytes that `join` puts between two items, of its arguments behind the list.
pub fn joiner(arguments: &[Value]) -> Result<usize, Error> {
    let joiner = match arguments.first() {
        Some(named) if named.is_kwargs() => {
            Some(named.get_attr("d")?).filter(|joiner| !joiner.is_undefined())
        }
        first => first.cloned(),
    };
    joiner.map_or(Ok(0), |joiner| Ok(as_text(&joiner)?.len()))
}

/// The arguments of Jinja's `slice` and `batch`, which make as many lists or items as they are told.
pub fn check_count(arguments: &[Value]) -> Result<(), Error> {
    let is_large =
        |count: &Value| i64::try_from(count.clone()).is_ok_and(|count| count > limits::TEMPLATE_ITEMS as i64);
    match arguments.get(1).is_some_and(is_large) {
        true => Err(too_large("a list becomes too long")),
        false => Ok(()),
    }
}

/// The test `divisibleby`: minijinja 3.0.5 panics where it divides by 0, and where the smallest integer is divided by −1.
pub fn is_divisible(value: &Value, by: &Value) -> Result<bool, Error> {
    match i128::try_from(by.clone()) {
        Ok(0) => Err(Error::new(ErrorKind::InvalidOperation, "division by zero")),
        Ok(-1) => Ok(is_divisibleby(value, &Value::from(1))),
        _ => Ok(is_divisibleby(value, by)),
    }
}

/// Jinja's `center`.
pub fn center(text: &str, width: Option<usize>) -> Result<String, Error> {
    let width = width.unwrap_or(80);
    let missing = width.saturating_sub(text.chars().count());
    let left = missing / 2 + (missing & width & 1);
    Ok(format!("{}{text}{}", blanks(left)?, blanks(missing - left)?))
}

/// So many blanks, if a text has room for them.
pub fn blanks(count: usize) -> Result<String, Error> {
    match count as u64 > limits::PROMPT {
        true => Err(Error::new(ErrorKind::InvalidOperation, format!("{count} blanks are too many"))),
        false => Ok(" ".repeat(count)),
    }
}

/// Where Python's `splitlines` splits, besides `\r\n`.
const LINE_ENDS: [char; 10] =
    ['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'];

/// Jinja's `indent`, which keeps a last line end.
pub fn indent(
    text: &str,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let width = width.or(options.get("width")?).unwrap_or(Value::from(4));
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
    let margin = match width.as_str() {
        Some(text) => text.to_string(),
        None => blanks(usize::try_from(width)?)?,
    };
    let line = |(i, line): (usize, &str)| {
        let indented = if i == 0 { first } else { blank || !line.is_empty() };
        if indented { format!("{margin}{line}") } else { line.to_string() }
    };
    let text = format!("{text}\n").replace("\r\n", "\n");
    let mut lines: Vec<_> = text.split(LINE_ENDS).enumerate().map(line).collect();
    lines.pop(); // what follows the line end that we put there
    Ok(lines.join("\n"))
}

/// Jinja's `truncate`.
pub fn truncate(
    text: &str,
    length: Option<usize>,
    killwords: Option<bool>,
    end: Option<String>,
    options: Kwargs,
) -> Result<String, Error> {
    let length = length.or(options.get("length")?).unwrap_or(255);
    let killwords = killwords.or(options.get("killwords")?).unwrap_or(false);
    let end = end.or(options.get("end")?).unwrap_or("...".to_string());
    let leeway = options.get::<Option<usize>>("leeway")?.unwrap_or(5);
    options.assert_all_used()?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text.to_string());
    }
    let kept: String = text.chars().take(length.saturating_sub(end.chars().count())).collect();
    let kept =
        if killwords { &kept } else { kept.rsplit_once(' ').map_or(kept.as_str(), |(words, _)| words) };
    Ok(format!("{kept}{end}"))
}

/// Jinja's `wordcount`.
pub fn wordcount(text: &str) -> usize {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).count()
}

/// The indices that Python's slice takes of `len` items.
fn steps(len: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> impl Iterator<Item = usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let (lower, upper) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let clamp = |at: i64| if at < 0 { at.saturating_add(len) } else { at }.clamp(lower, upper);
    let (first, last) = if step > 0 { (lower, upper) } else { (upper, lower) };
    let (start, stop) = (start.map_or(first, clamp), stop.map_or(last, clamp));
    let inside = move |at: &i64| if step > 0 { *at < stop } else { *at > stop };
    std::iter::successors(Some(start), move |at| at.checked_add(step))
        .take_while(inside)
        .map(|at| at as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_with_a_step_and_formats_are_rewritten() {
        for (text, expected) in [
            ("{{ x[::-1] }}", "{{ x.__slice__(none, none, -1) }}"),
            ("{{ x[1:] }}{{ x[:'a:b'] }}", "{{ x[1:] }}{{ x[:'a:b'] }}"),
            (
                "{{ x[y[::2][0]:f(':', {'a': 1, 'b': 2}):3] }}",
                "{{ x.__slice__(y.__slice__(none, none, 2)[0], f(':', {'a': 1, 'b': 2}), 3) }}",
            ),
            ("[::-1] {# x[::-1] #} {{ '[::-1] }}' }}", "[::-1] {# x[::-1] #} {{ '[::-1] }}' }}"),
            ("{{ [{'a': {'b': 1}}, {'c': 2}] }}[::]", "{{ [{'a': {'b': 1}}, {'c': 2}] }}[::]"),
            ("{% generation_x %}{%+ generation", "{% generation_x %}{%+ with"),
            ("{{ 'a%s' % x.y[0] ~ 'b' }}", "{{ 'a%s'.__mod__(x.y[0]) ~ 'b' }}"),
            ("{{ f(a ~ b, c=d + e, g=1) }}", "{{ f( (a ~ b)|__bounded__, c= (d + e)|__bounded__, g=1) }}"),
            ("{{ [a + b][c + 1:] == 'x+y' }}", "{{ [ (a + b)|__bounded__][c + 1:] == 'x+y' }}"),
            ("{{ f(*a, **b) or (c == d * 2) }}", "{{ f(*a, **b) or ( (c == d * 2)|__bounded__) }}"),
            ("{{ {'a': b ~ c, 'd': e} }}", "{{ {'a': (b ~ c)|__bounded__, 'd': e} }}"),
            (
                "{%- set x.y = 'a=b' if c == 1 else d -%}",
                "{%- set x.y = ('a=b' if c == 1 else d)|__bounded__ -%}",
            ),
            ("{% set a, b = 1, 2 %}{% set c %}", "{% set a, b = (1, 2)|__bounded__ %}{% set c %}"),
            ("{% with a = b ~ c, d = e %}", "{% with a = (b ~ c)|__bounded__, d = e %}"),
            (
                "{{ '%s %d' % (x, -1 % 2)|f('%') + 5 % 3 }}",
                "{{ '%s %d'.__mod__((x, -1 % 2)|f('%')) + 5 % 3 }}",
            ),
            (
                "{% set x = '%s' % -y if z %}{% set x = 'a' %}",
                "{% set x = ('%s'.__mod__(-y) if z)|__bounded__ %}{% set x = ('a')|__bounded__ %}",
            ),
            ("{%- endgeneration -%}x", "{%- endwith -%}x"),
        ] {
            assert_eq!(translate(text).source, expected);
        }
    }

    #[test]
    fn slices_are_pythons() {
        let of = |len, start, stop, step| steps(len, start, stop, step).collect::<Vec<_>>();
        assert_eq!(of(0, None, None, -1), [0; 0]);
        assert_eq!(of(4, None, None, -1), [3, 2, 1, 0]);
        assert_eq!(of(5, Some(-2), None, -2), [3, 1]);
        assert_eq!(of(5, Some(9), Some(1), -1), [4, 3, 2]);
        assert_eq!(of(5, Some(1), Some(-1), 2), [1, 3]);
        assert_eq!(of(5, Some(2), Some(4), -1), [0; 0]);
        assert_eq!(of(3, Some(i64::MIN), Some(i64::MAX), i64::MAX), [0]);
    }
}
