//! Python's two ways to put values into a text: `text % values` and `text.format(…)`.

use std::borrow::Cow;

use minijinja::formatting::{self, FormatStyle};
use minijinja::value::{Kwargs, Rest, Tuple};
use minijinja::{Error, Value};
use num_bigint::BigInt;
use num_traits::Signed;

use crate::budget::{self, Budget};
use crate::numbers::{self, PythonNumber};
use crate::{collection_methods, escape, invalid, repr_json};

/// Jinja's filter `format`, which evaluates Python's `text % values`.
pub fn filter(budget: Budget, text: &Value, values: Rest<Value>, named: &Kwargs) -> Result<Value, Error> {
    let mut names = named.args().peekable();
    let values = match names.peek().is_some() {
        true if !values.is_empty() => {
            return Err(invalid("`format` has values with names and without, expected either"));
        }
        true => {
            let pairs = names.map(|name| Ok((name, named.get::<Value>(name)?)));
            Value::from_pairs(pairs.collect::<Result<Vec<_>, Error>>()?)
        }
        false => Value::from(Tuple::from(values.0)),
    };
    percent(budget, text, &values)
}

/// Python's `text % values`. A tuple replaces one placeholder with each of its items.
pub fn percent(budget: Budget, text: &Value, values: &Value) -> Result<Value, Error> {
    let format = repr_json::str(text)?;
    let list: Vec<Value> = if collection_methods::is_tuple(values) {
        values.try_iter()?.collect()
    } else {
        vec![values.clone()]
    };
    budget.check_format(&format, &list)?;
    let mut put = Printf { values, list, index: 0, escapes: text.is_safe() };
    let mut out = String::with_capacity(format.len());
    let mut rest = &*format;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        rest = put.conversion(after, &mut out)?;
        budget::check_width(out.len())?;
    }
    // An unused value is an error, unless the only value is a list or a dictionary.
    let is_mapping = !collection_methods::is_tuple(values)
        && (collection_methods::is_dict(values) || collection_methods::is_list(values));
    if put.index < put.list.len() && !is_mapping {
        return Err(invalid("not all arguments converted during string formatting"));
    }
    out.push_str(rest);
    Ok(escape::like(text, out))
}

/// The values of `text % values`.
struct Printf<'a> {
    values: &'a Value,
    list: Vec<Value>,
    /// The index of the next value for a placeholder without a name.
    index: usize,
    /// Whether the text is marked as `safe`, so texts of values are escaped.
    escapes: bool,
}

/// The settings between the `%` and the letter of a placeholder.
struct Settings<'a> {
    flags: &'a str,
    width: usize,
    precision: Option<usize>,
}

impl Printf<'_> {
    /// Formats the placeholder at the beginning of a text, and returns the text after the placeholder.
    fn conversion<'t>(&mut self, text: &'t str, out: &mut String) -> Result<&'t str, Error> {
        let (key, text) = match text.strip_prefix('(') {
            Some(inside) => {
                let end = end_of_key(inside).ok_or_else(|| invalid("a key in a format has no end, `)`"))?;
                (Some(&inside[..end]), &inside[end + 1..])
            }
            None => (None, text),
        };
        let split = |text: &'t str, chars: &str| {
            text.split_at(text.find(|c| !chars.contains(c)).unwrap_or(text.len()))
        };
        let (flags, text) = split(text, "#0- +");
        let (width, text) = split(text, "0123456789");
        let (precision, text) = match text.strip_prefix('.') {
            Some(text) => {
                let (precision, text) = split(text, "0123456789");
                (Some(number(precision)?), text)
            }
            None => (None, text),
        };
        let text = text.strip_prefix(['h', 'l', 'L']).unwrap_or(text);
        let mut chars = text.chars();
        let kind = chars.next().ok_or_else(|| invalid("a format ends in the middle of a placeholder"))?;
        let settings = Settings { flags, width: number(width)?, precision };
        match kind {
            '%' => out.push('%'),
            '*' => return Err(invalid("a width among the values, `*`, is not supported")),
            kind => {
                let value = self.value(key)?;
                budget::check_width(settings.width.max(precision.unwrap_or(0)))?;
                out.push_str(&self.formatted(&value, kind, &settings)?);
            }
        }
        Ok(chars.as_str())
    }

    fn value(&mut self, key: Option<&str>) -> Result<Value, Error> {
        let Some(key) = key else {
            let value = self.list.get(self.index).cloned();
            self.index += 1;
            return value.ok_or_else(|| invalid("not enough arguments for format string"));
        };
        if !collection_methods::is_dict(self.values) {
            return Err(invalid("a format with names is given no dictionary"));
        }
        let found = self.values.as_object().and_then(|dict| dict.get_value(&Value::from(key)));
        found.ok_or_else(|| invalid(format!("a format has the key `{key:.40}`, which the dictionary lacks")))
    }

    fn formatted(&self, value: &Value, kind: char, settings: &Settings) -> Result<String, Error> {
        let text = match kind {
            's' if self.escapes => Some(Cow::from(escape::escaped(value)?)),
            's' => Some(repr_json::str(value)?),
            'r' | 'a' => {
                let text = repr_json::repr(value, kind == 'a')?;
                Some(Cow::from(if self.escapes { escape::escape_text(&text)? } else { text }))
            }
            'c' if value.as_str().is_some_and(|text| text.chars().count() == 1) && !self.escapes => {
                Some(repr_json::str(value)?)
            }
            _ => None,
        };
        let is_left = settings.flags.contains('-');
        if let Some(text) = text {
            let precision = settings.precision.filter(|_| kind != 'c').unwrap_or(usize::MAX);
            let text: String = text.chars().take(precision).collect();
            return padded(text, ' ', if is_left { '<' } else { '>' }, settings.width);
        }
        let number = PythonNumber::of(value);
        let number = number.ok_or_else(|| invalid(format!("`%{kind}` is given no number")))?;
        match (kind, number) {
            ('d' | 'i' | 'u', number) => {
                let whole = match number {
                    PythonNumber::Integer(whole) => Some(whole),
                    PythonNumber::Real(real) => numbers::whole(real),
                };
                let whole = whole.ok_or_else(|| invalid("a float that is not finite is no integer"))?;
                settings.integer(&whole, &whole.abs().to_string(), "")
            }
            ('o' | 'x' | 'X', PythonNumber::Integer(whole)) if !self.escapes => {
                let (base, prefix) = if kind == 'o' { (8, "0o") } else { (16, "0x") };
                let (digits, prefix) = (whole.abs().to_str_radix(base), prefix.to_owned());
                let is_upper = kind == 'X';
                let upper = |text: String| if is_upper { text.to_uppercase() } else { text };
                settings.integer(&whole, &upper(digits), &upper(prefix))
            }
            ('e' | 'E' | 'f' | 'F' | 'g' | 'G', number) => {
                let Settings { flags, width, precision } = settings;
                let precision = precision.map_or_else(String::new, |precision| format!(".{precision}"));
                let width = if *width > 0 { width.to_string() } else { String::new() };
                let format = format!("%{flags}{width}{precision}{kind}");
                formatting::format(FormatStyle::Printf, &format, &[Value::from(number.real()?)])
            }
            ('c', PythonNumber::Integer(code)) => {
                let c = u32::try_from(code).ok().and_then(char::from_u32);
                let c = c.ok_or_else(|| invalid("`%c` is given no character"))?;
                padded(c.into(), ' ', if is_left { '<' } else { '>' }, settings.width)
            }
            _ => Err(invalid(format!("`%{kind}` cannot format this value"))),
        }
    }
}

impl Settings<'_> {
    /// Formats an integer with its sign, the prefix of its base, and zeros.
    fn integer(&self, number: &BigInt, digits: &str, prefix: &str) -> Result<String, Error> {
        let has = |flag: char| self.flags.contains(flag);
        let sign = match number.is_negative() {
            true => "-",
            false if has('+') => "+",
            false if has(' ') => " ",
            false => "",
        };
        let prefix = if has('#') { prefix } else { "" };
        let before = sign.len() + prefix.len();
        let zeros = if has('0') && !has('-') { self.width.saturating_sub(before) } else { 0 };
        let digits = padded(digits.to_owned(), '0', '>', zeros.max(self.precision.unwrap_or(0)))?;
        padded(format!("{sign}{prefix}{digits}"), ' ', if has('-') { '<' } else { '>' }, self.width)
    }
}

/// The position of the bracket that ends a key. A key can contain pairs of brackets.
fn end_of_key(text: &str) -> Option<usize> {
    let mut depth = 0;
    let (end, _) = text.char_indices().find(|(_, c)| {
        depth += i32::from(*c == '(') - i32::from(*c == ')');
        depth < 0
    })?;
    Some(end)
}

/// Parses a width or a precision, which is 0 without digits.
fn number(digits: &str) -> Result<usize, Error> {
    match digits {
        "" => Ok(0),
        digits => digits.parse().map_err(|_| invalid("a text becomes too wide")),
    }
}

/// Pads a text to a width in characters. `align` is `<`, `^` or `>`.
fn padded(text: String, fill: char, align: char, width: usize) -> Result<String, Error> {
    let missing = width.saturating_sub(text.chars().count());
    if missing == 0 {
        return Ok(text);
    }
    let left = match align {
        '<' => 0,
        '^' => missing / 2,
        _ => missing,
    };
    let fill = |count: usize| budget::repeated(fill.encode_utf8(&mut [0; 4]), count);
    Ok(fill(left)? + &text + &fill(missing - left)?)
}

/// Python's `text.format(…)`. Named arguments are the last value of `values`.
pub fn format(budget: Budget, text: &str, values: &[Value], escapes: bool) -> Result<String, Error> {
    budget.check_format(text, values)?;
    let (named, places) = match values.split_last() {
        Some((last, places)) if last.is_kwargs() => (Some(last), places),
        _ => (None, values),
    };
    Fields { places, named, next: Some(0), escapes }.filled(text, 0)
}

/// Python's `text.format_map(mapping)`.
pub fn format_map(budget: Budget, text: &str, mapping: &Value, escapes: bool) -> Result<String, Error> {
    budget.check_format(text, std::slice::from_ref(mapping))?;
    Fields { places: &[], named: Some(mapping), next: Some(0), escapes }.filled(text, 0)
}

/// The values of `text.format(…)`.
struct Fields<'a> {
    places: &'a [Value],
    named: Option<&'a Value>,
    /// The number of the next field without a name, or `None` after a field with a number.
    next: Option<usize>,
    escapes: bool,
}

impl Fields<'_> {
    /// Replaces the fields of a text. The settings of a field can contain fields, at depth 1.
    fn filled(&mut self, text: &str, depth: usize) -> Result<String, Error> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once(['{', '}']) {
            out.push_str(before);
            let brace = &rest[before.len()..=before.len()];
            if let Some(after) = after.strip_prefix(brace) {
                out.push_str(brace);
                rest = after;
            } else if brace == "{" {
                let mut open = 1;
                let end = after.char_indices().find(|(_, c)| {
                    open += i32::from(*c == '{') - i32::from(*c == '}');
                    open == 0
                });
                let (end, _) = end.ok_or_else(|| invalid("expected `}` before end of string"))?;
                out.push_str(&self.field(&after[..end], depth)?);
                budget::check_width(out.len())?;
                rest = &after[end + 1..];
            } else {
                return Err(invalid("single `}` encountered in format string"));
            }
        }
        out.push_str(rest);
        Ok(out)
    }

    fn field(&mut self, field: &str, depth: usize) -> Result<String, Error> {
        if depth > 1 {
            return Err(invalid("max string recursion exceeded"));
        }
        let end = end_of_name(field);
        let (name, rest) = field.split_at(end);
        let (conversion, settings) = match rest.strip_prefix('!') {
            Some(rest) => {
                let (conversion, rest) = rest.split_once(':').map_or((rest, ""), |(kind, rest)| (kind, rest));
                (Some(conversion), rest)
            }
            None => (None, rest.strip_prefix(':').unwrap_or(rest)),
        };
        let value = self.value(name)?;
        let value = match conversion {
            None => value,
            Some("s") => Value::from(repr_json::str(&value)?),
            Some(kind @ ("r" | "a")) => Value::from(repr_json::repr(&value, kind == "a")?),
            Some(kind) => return Err(invalid(format!("unknown conversion specifier `{kind:.20}`"))),
        };
        let settings = self.filled(settings, depth + 1)?;
        let is_mark = self.escapes && value.is_safe();
        if is_mark && !settings.is_empty() {
            return Err(invalid("a text that is marked as `safe` has no width"));
        }
        let text = formatted(&value, &settings)?;
        if self.escapes && !is_mark { escape::escape_text(&text) } else { Ok(text) }
    }

    fn value(&mut self, name: &str) -> Result<Value, Error> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut path) = name.split_at(end);
        let index = match first {
            "" => {
                let at = self.next.ok_or_else(|| invalid("fields have numbers and no numbers"))?;
                self.next = Some(at + 1);
                Some(at)
            }
            first if first.bytes().all(|c| c.is_ascii_digit()) => {
                if self.next.is_some_and(|next| next > 0) {
                    return Err(invalid("fields have numbers and no numbers"));
                }
                self.next = None;
                Some(number(first)?)
            }
            _ => None,
        };
        let mut value = match index {
            Some(index) => self.places.get(index).cloned(),
            None => self.named.and_then(|named| named.get_item(&Value::from(first)).ok()),
        };
        value = value.filter(|value| !value.is_undefined());
        let mut value = value.ok_or_else(|| invalid(format!("a format has no value for `{first:.40}`")))?;
        while !path.is_empty() {
            let inner = path.strip_prefix('[').and_then(|path| path.split_once(']'));
            (value, path) = match (path.strip_prefix('.'), inner) {
                (Some(rest), _) => {
                    let (name, rest) = rest.split_at(rest.find(['.', '[']).unwrap_or(rest.len()));
                    (collection_methods::attribute(&value, name)?, rest)
                }
                (None, Some((key, rest))) => {
                    let key = key.parse::<i64>().map_or_else(|_| Value::from(key), Value::from);
                    (value.get_item(&key)?, rest)
                }
                (None, None) => return Err(invalid("a field of a format has no `]`")),
            };
        }
        Ok(value)
    }
}

/// The position after a field's name. An index in brackets can contain any character.
fn end_of_name(field: &str) -> usize {
    let mut inside = false;
    let ends = |&(_, c): &(usize, char)| {
        inside = if inside { c != ']' } else { c == '[' };
        !inside && "!:".contains(c)
    };
    field.char_indices().find(ends).map_or(field.len(), |(end, _)| end)
}

/// Python's `format(value, settings)`.
fn formatted(value: &Value, settings: &str) -> Result<String, Error> {
    if settings.is_empty() {
        return Ok(repr_json::str(value)?.into_owned());
    }
    if let Some(text) = value.as_str() {
        return aligned(text, settings);
    }
    let Some(number) = PythonNumber::of(value) else {
        return Err(invalid(format!("a format of a {} is `{settings:.40}`, expected none", value.kind())));
    };
    let kind = settings.chars().last().unwrap_or_default();
    let is_real = matches!(number, PythonNumber::Real(_)) || "eEfFgG%".contains(kind);
    if let Some(rest) = settings.strip_suffix('%') {
        let (fill, align, rest) = alignment(rest);
        let digits = rest.find('.').unwrap_or(rest.len());
        let (width, precision) = rest.split_at(digits);
        let share = Value::from(number.real()? * 100.0);
        let text = formatting::format(FormatStyle::StrFormat, &format!("{{:{precision}f}}"), &[share])?;
        let (fill, width) = width.strip_prefix('0').map_or((fill, width), |width| (Some('0'), width));
        return padded(text + "%", fill.unwrap_or(' '), align.unwrap_or('>'), self::number(width)?);
    }
    let widths = settings.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    for digits in widths {
        budget::check_width(self::number(digits)?)?;
    }
    let value = match number {
        number if is_real => Value::from(number.real()?),
        PythonNumber::Integer(_) if settings.contains('.') => {
            return Err(invalid("an integer has no decimals, which a format sets"));
        }
        PythonNumber::Integer(number) if numbers::large(value).is_some() => return large(&number, settings),
        _ => value.clone(),
    };
    if let Ok(real) = f64::try_from(value.clone())
        && kind.is_ascii_digit()
        && let Some((before, precision)) = settings.rsplit_once('.')
    {
        return general(real, before, self::number(precision)?);
    }
    formatting::format(FormatStyle::StrFormat, &format!("{{:{settings}}}"), &[value])
}

/// Python's format of a float with a precision but without a letter. Unlike with `g`, a float with as
/// many digits before its point as the precision gets an exponent.
fn general(real: f64, before: &str, precision: usize) -> Result<String, Error> {
    let precision = precision.max(1);
    let settings = format!("{{:{before}.{precision}}}");
    let rounded = format!("{real:.0$e}", precision - 1);
    let exponent = rounded.split_once('e').and_then(|(_, exponent)| exponent.parse::<i64>().ok());
    if exponent != i64::try_from(precision - 1).ok() {
        return formatting::format(FormatStyle::StrFormat, &settings, &[Value::from(real)]);
    }
    let (fill, align, width) = alignment(before);
    if !width.bytes().all(|c| c.is_ascii_digit()) || width.starts_with('0') || align == Some('=') {
        return Err(invalid(format!("the format `{before:.40}.{precision}` is not supported")));
    }
    let (digits, exponent) = rounded.split_once('e').unwrap_or((&rounded, "0"));
    let digits =
        if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits };
    padded(format!("{digits}e+{exponent:0>2}"), fill.unwrap_or(' '), align.unwrap_or('>'), number(width)?)
}

/// Formats an integer of more than 128 bits.
fn large(number: &BigInt, settings: &str) -> Result<String, Error> {
    let (fill, align, rest) = alignment(settings);
    let rest = rest.strip_suffix('d').unwrap_or(rest);
    let (plus, rest) = rest.split_at(usize::from(rest.starts_with(['+', '-', ' '])));
    let sign = match plus {
        _ if number.is_negative() => "-",
        "-" => "",
        plus => plus,
    };
    let (rest, group) = rest.split_at(rest.len() - usize::from(rest.ends_with([',', '_'])));
    if align == Some('=') || rest.starts_with('0') || !rest.bytes().all(|c| c.is_ascii_digit()) {
        let message =
            format!("the format `{settings:.40}` is not supported for an integer of more than 128 bits");
        return Err(invalid(message));
    }
    let digits = number.abs().to_string();
    let mut text = sign.to_owned();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push_str(group);
        }
        text.push(digit);
    }
    padded(text, fill.unwrap_or(' '), align.unwrap_or('>'), self::number(rest)?)
}

/// Reads the fill character and the alignment of a format.
fn alignment(settings: &str) -> (Option<char>, Option<char>, &str) {
    let mut chars = settings.chars();
    match (chars.next(), chars.clone().next()) {
        (Some(fill), Some(align)) if "<>^=".contains(align) => {
            chars.next();
            (Some(fill), Some(align), chars.as_str())
        }
        (Some(align), _) if "<>^=".contains(align) => (None, Some(align), chars.as_str()),
        _ => (None, None, settings),
    }
}

/// Python's format of a string.
fn aligned(text: &str, settings: &str) -> Result<String, Error> {
    let (fill, align, rest) = alignment(settings);
    let (fill, rest) = match rest.strip_prefix('0') {
        Some(rest) => (fill.or(Some('0')), rest),
        None => (fill, rest),
    };
    let rest = rest.strip_suffix('s').unwrap_or(rest);
    let (width, precision) = rest.split_once('.').map_or((rest, None), |(width, most)| (width, Some(most)));
    let is_number = |text: &str| text.bytes().all(|c| c.is_ascii_digit());
    if !is_number(width)
        || precision.is_some_and(|most| most.is_empty() || !is_number(most))
        || align == Some('=')
    {
        return Err(invalid(format!("a format of a text is `{settings:.40}`, expected a width")));
    }
    let most = precision.map(number).transpose()?.unwrap_or(usize::MAX);
    padded(text.chars().take(most).collect(), fill.unwrap_or(' '), align.unwrap_or('<'), number(width)?)
}
