use minijinja::value::{Kwargs, Tuple, from_args};
use minijinja::{Error, ErrorKind, Value};

use crate::budget::{self, Budget};
use crate::invalid;

/// The names of all methods of Python's `str`, including methods that [`call`] does not support.
const METHODS: &str = "capitalize casefold center count encode endswith expandtabs find format format_map index isalnum \
    isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper \
    join ljust lower lstrip maketrans partition removeprefix removesuffix replace rfind rindex rjust \
    rpartition rsplit rstrip split splitlines startswith strip swapcase title translate upper zfill";

/// Whether Python's `str` has a method with this name.
pub fn is_method(name: &str) -> bool {
    METHODS.split(' ').any(|method| method == name)
}

pub fn call(budget: Budget, text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    match method {
        "capitalize" => of_none(args, || capitalize(text)),
        "center" => justify(text, args, half),
        "count" => {
            Ok(Value::from(within(text, args)?.map_or(0, |(_, part, what)| part.matches(&*what).count())))
        }
        "endswith" => affix(text, args, |part, what| part.ends_with(what)),
        "expandtabs" => expandtabs(text, args),
        "find" => {
            Ok(Value::from(position(text, args, |part, what| part.find(what))?.map_or(-1, |at| at as i64)))
        }
        "index" => found(position(text, args, |part, what| part.find(what))?),
        "isalnum" => each(text, args, is_letter_or_number),
        "isalpha" => each(text, args, is_letter),
        "isascii" => of_none(args, || text.is_ascii()),
        "isdecimal" | "isdigit" => each(text, args, is_digit),
        "islower" => {
            of_none(args, || text.chars().any(char::is_lowercase) && !text.chars().any(is_upper_or_title))
        }
        "isnumeric" => each(text, args, is_number),
        "isspace" => of_none(args, || !text.is_empty() && text.chars().all(is_space)),
        "istitle" => of_none(args, || is_title(text)),
        "isupper" => of_none(args, || {
            text.chars().any(char::is_uppercase) && !text.chars().any(|c| c.is_lowercase() || is_titlecase(c))
        }),
        "join" => join(budget, text, args),
        "ljust" => justify(text, args, |_, _| 0),
        "lower" => of_none(args, || text.to_lowercase()),
        "lstrip" => stripped(text, args, true, false),
        "partition" => partition(text, args, |text, separator| text.split_once(separator), [text, "", ""]),
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "replace" => replace(budget, text, args),
        "rfind" => {
            Ok(Value::from(position(text, args, |part, what| part.rfind(what))?.map_or(-1, |at| at as i64)))
        }
        "rindex" => found(position(text, args, |part, what| part.rfind(what))?),
        "rjust" => justify(text, args, |missing, _| missing),
        "rpartition" => partition(text, args, |text, separator| text.rsplit_once(separator), ["", "", text]),
        "rsplit" => split(text, args, true),
        "rstrip" => stripped(text, args, false, true),
        "split" => split(text, args, false),
        "splitlines" => splitlines(text, args),
        "startswith" => affix(text, args, |part, what| part.starts_with(what)),
        "strip" => stripped(text, args, true, true),
        "swapcase" => of_none(args, || swapcase(text)),
        "title" => of_none(args, || title(text)),
        "upper" => of_none(args, || text.to_uppercase()),
        "zfill" => zfill(text, args),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// The characters at which Python's `splitlines` splits, in addition to `\r\n`.
pub const LINE_ENDS: [char; 10] =
    ['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'];

/// Whether Python treats a character as white space.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Python's `str.strip`, which removes `chars` or white space at the two ends of a text.
pub fn strip<'a>(text: &'a str, chars: Option<&str>) -> &'a str {
    trim(text, chars, true, true)
}

fn trim<'a>(text: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    let goes = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if start { text.trim_start_matches(goes) } else { text };
    if end { text.trim_end_matches(goes) } else { text }
}

fn stripped(text: &str, args: &[Value], start: bool, end: bool) -> Result<Value, Error> {
    let (chars,): (Option<&str>,) = from_args(args)?;
    Ok(Value::from(trim(text, chars, start, end)))
}

fn of_none<T: Into<Value>>(args: &[Value], made: impl FnOnce() -> T) -> Result<Value, Error> {
    let () = from_args(args)?;
    Ok(made().into())
}

/// Whether all characters of a text belong to a character class. Returns an error if the function `is`
/// returns `None` for a character, which means that Python's class of this character is unknown.
fn each(text: &str, args: &[Value], is: fn(char) -> Option<bool>) -> Result<Value, Error> {
    let () = from_args(args)?;
    if text.is_empty() || text.chars().any(|c| is(c) == Some(false)) {
        return Ok(Value::from(false));
    }
    match text.chars().find(|c| is(*c).is_none()) {
        Some(c) => Err(invalid(format!("what kind of character `{c}` is, is not known here"))),
        None => Ok(Value::from(true)),
    }
}

/// Whether Python treats a character as a letter. Rust's class of letters is larger than Python's
/// class, so the function returns an answer only for some alphabets.
fn is_letter(c: char) -> Option<bool> {
    match c {
        'A'..='Z' | 'a'..='z' => Some(true),
        _ if !c.is_alphabetic() => Some(false),
        '\u{aa}'..='\u{2c1}' | 'Ͱ'..='ҁ' | 'Ҋ'..='ԯ' | 'א'..='ת' | 'ؠ'..='ي' | 'Ḁ'..='ỿ' => {
            Some(true)
        }
        'ぁ'..='ゖ' | 'ァ'..='ヺ' | '㐀'..='鿿' | '가'..='힣' => Some(true),
        _ => None,
    }
}

/// Whether Python treats a character as a digit. Rust has only the larger class of numbers, so the
/// result is `None` for numbers outside of ASCII.
fn is_digit(c: char) -> Option<bool> {
    if c.is_ascii() || !c.is_numeric() { Some(c.is_ascii_digit()) } else { None }
}

/// Whether Python treats a character as a number. Some East Asian characters are numbers in Python,
/// so the result is `None` for letters from East Asian scripts.
fn is_number(c: char) -> Option<bool> {
    if c >= '\u{2e80}' && c.is_alphabetic() { None } else { Some(c.is_numeric()) }
}

fn is_letter_or_number(c: char) -> Option<bool> {
    if c.is_numeric() { Some(true) } else { is_letter(c) }
}

/// Reads the arguments of a method such as `find`. Returns the number of characters before the
/// start position, the part of the text between the positions, and the text to search for. Returns
/// `None` if the positions are beyond the text.
fn within<'a>(text: &'a str, args: &[Value]) -> Result<Option<(usize, &'a str, String)>, Error> {
    let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
    Ok(part(text, start, end).map(|(at, part)| (at, part, what.to_owned())))
}

fn part(text: &str, start: Option<i64>, end: Option<i64>) -> Option<(usize, &str)> {
    let len = text.chars().count() as i64;
    let place = |at: i64| if at < 0 { at.saturating_add(len).max(0) } else { at };
    let (start, end) = (place(start.unwrap_or(0)), place(end.unwrap_or(len)).min(len));
    let byte = |at: i64| text.char_indices().nth(at as usize).map_or(text.len(), |(byte, _)| byte);
    (start <= end).then(|| (start as usize, &text[byte(start)..byte(end)]))
}

/// Finds a text in a part of another text. The position is a number of characters from the
/// beginning of the searched text.
fn position(
    text: &str,
    args: &[Value],
    find: fn(&str, &str) -> Option<usize>,
) -> Result<Option<usize>, Error> {
    let Some((before, part, what)) = within(text, args)? else { return Ok(None) };
    Ok(find(part, &what).map(|at| before + part[..at].chars().count()))
}

fn found(at: Option<usize>) -> Result<Value, Error> {
    at.map(Value::from).ok_or_else(|| invalid("substring not found"))
}

/// Whether a part of a text begins or ends with another text. If the argument is a tuple, any text
/// of the tuple may match.
fn affix(text: &str, args: &[Value], has: impl Fn(&str, &str) -> bool) -> Result<Value, Error> {
    let (what, start, end): (Value, Option<i64>, Option<i64>) = from_args(args)?;
    let all = if what.is_tuple() { what.try_iter()?.collect() } else { vec![what] };
    let part = part(text, start, end);
    let mut any = false;
    for what in &all {
        let what = expect_text(what)?;
        any |= part.is_some_and(|(_, part)| has(part, what));
    }
    Ok(Value::from(any))
}

/// The string in a value. Returns an error if the value is not a string.
fn expect_text(value: &Value) -> Result<&str, Error> {
    value.as_str().ok_or_else(|| invalid(format!("expected a text, found a {}", value.kind())))
}

fn join(budget: Budget, text: &str, args: &[Value]) -> Result<Value, Error> {
    let (list,): (&Value,) = from_args(args)?;
    budget.check_join(list, text.len())?;
    let mut joined = String::new();
    for (i, item) in list.try_iter()?.enumerate() {
        if i > 0 {
            joined.push_str(text);
        }
        joined.push_str(expect_text(&item)?);
    }
    Ok(Value::from(joined))
}

fn replace(budget: Budget, text: &str, args: &[Value]) -> Result<Value, Error> {
    let (from, to, count): (&Value, &Value, Option<i64>) = from_args(args)?;
    let (from, to) = (expect_text(from)?, expect_text(to)?);
    budget.check_replace(text, from, to)?;
    Ok(Value::from(match usize::try_from(count.unwrap_or(-1)) {
        Ok(count) => text.replacen(from, to, count),
        Err(_) => text.replace(from, to), // a negative count replaces all occurrences
    }))
}

fn partition<'a>(
    text: &'a str,
    args: &[Value],
    split: impl Fn(&'a str, &str) -> Option<(&'a str, &'a str)>,
    whole: [&str; 3],
) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(args)?;
    check_separator(separator)?;
    let parts = split(text, separator).map_or(whole, |(before, after)| [before, separator, after]);
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

fn check_separator(separator: &str) -> Result<(), Error> {
    if separator.is_empty() { Err(invalid("empty separator")) } else { Ok(()) }
}

/// Python's `split` and `rsplit`, which split a text at a separator or at white space.
fn split(text: &str, args: &[Value], from_end: bool) -> Result<Value, Error> {
    let (separator, most, options): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.or(options.get("sep")?);
    let most = most.or(options.get("maxsplit")?).unwrap_or(-1);
    options.assert_all_used()?;
    // With a negative number, the number of parts has no limit.
    let parts = usize::try_from(most).map_or(usize::MAX, |most| most.saturating_add(1));
    match (separator, from_end) {
        (Some(separator), false) => {
            check_separator(separator)?;
            budget::list(text.splitn(parts, separator).map(Value::from))
        }
        (Some(separator), true) => {
            check_separator(separator)?;
            let parts = budget::items(text.rsplitn(parts, separator).map(Value::from))?;
            Ok(parts.into_iter().rev().collect())
        }
        (None, from_end) => {
            let words = budget::items(Pieces { rest: text, parts, from_end }.map(Value::from))?;
            Ok(if from_end { words.into_iter().rev().collect() } else { Value::from(words) })
        }
    }
}

/// The words of a text, read from the beginning or from the end. If the number of parts is limited,
/// the last part is the rest of the text.
struct Pieces<'a> {
    rest: &'a str,
    parts: usize,
    from_end: bool,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.rest = trim(self.rest, None, !self.from_end, self.from_end);
        self.parts = self.parts.saturating_sub(1);
        let cut = match (self.parts, self.from_end) {
            (0, _) => None,
            (_, false) => self.rest.split_once(is_space),
            (_, true) => self.rest.rsplit_once(is_space).map(|(rest, word)| (word, rest)),
        };
        let (word, rest) = cut.unwrap_or((self.rest, ""));
        self.rest = rest;
        Some(word).filter(|word| !word.is_empty())
    }
}

fn splitlines(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (keep, options): (Option<bool>, Kwargs) = from_args(args)?;
    let keep = keep.or(options.get("keepends")?).unwrap_or(false);
    options.assert_all_used()?;
    let mut rest = text;
    budget::list(std::iter::from_fn(|| {
        let at = rest.find(LINE_ENDS).unwrap_or(rest.len());
        let end = match rest[at..].chars().next() {
            Some('\r') if rest[at..].starts_with("\r\n") => at + 2,
            Some(c) => at + c.len_utf8(),
            None => at,
        };
        let line = (!rest.is_empty()).then(|| Value::from(&rest[..if keep { end } else { at }]));
        rest = &rest[end..];
        line
    }))
}

/// Pads a text with a character to a given width. `left` returns the number of padding characters
/// before the text.
fn justify(text: &str, args: &[Value], left: impl Fn(usize, usize) -> usize) -> Result<Value, Error> {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    let fill = fill.unwrap_or(" ");
    if fill.chars().count() != 1 {
        return Err(invalid("the fill character must be exactly one character long"));
    }
    let width = usize::try_from(width).unwrap_or(0);
    let missing = width.saturating_sub(text.chars().count());
    let left = left(missing, width);
    Ok(Value::from(budget::repeated(fill, left)? + text + &budget::repeated(fill, missing - left)?))
}

/// The number of padding characters before a centred text.
fn half(missing: usize, width: usize) -> usize {
    missing / 2 + (missing & width & 1)
}

/// Python's `str.center`, which pads a text with spaces at the two sides.
pub fn center(text: &str, width: i64) -> Result<Value, Error> {
    justify(text, &[Value::from(width)], half)
}

fn zfill(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (width,): (i64,) = from_args(args)?;
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(text.chars().count());
    let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
    Ok(Value::from(format!("{sign}{}{digits}", budget::repeated("0", missing)?)))
}

fn expandtabs(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (size, options): (Option<i64>, Kwargs) = from_args(args)?;
    let size = usize::try_from(size.or(options.get("tabsize")?).unwrap_or(8)).unwrap_or(0);
    options.assert_all_used()?;
    budget::check_width(text.matches('\t').count().saturating_mul(size))?;
    let (mut out, mut column) = (String::with_capacity(text.len()), 0);
    for c in text.chars() {
        match c {
            '\t' if size == 0 => {}
            '\t' => {
                let missing = size - column % size;
                out.push_str(&" ".repeat(missing));
                column += missing;
            }
            c => {
                out.push(c);
                column = if ['\n', '\r'].contains(&c) { 0 } else { column + 1 };
            }
        }
    }
    Ok(Value::from(out))
}

/// Whether a character is a titlecase letter, such as ǅ or ᾈ.
fn is_titlecase(c: char) -> bool {
    matches!(c, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ' | 'ᾈ'..='ᾏ' | 'ᾘ'..='ᾟ' | 'ᾨ'..='ᾯ' | 'ᾼ' | 'ῌ' | 'ῼ')
}

fn is_upper_or_title(c: char) -> bool {
    c.is_uppercase() || is_titlecase(c)
}

fn is_cased(c: char) -> bool {
    c.is_lowercase() || is_upper_or_title(c)
}

fn is_title(text: &str) -> bool {
    let (mut any, mut inside) = (false, false);
    for c in text.chars() {
        if is_cased(c) {
            if inside == is_upper_or_title(c) {
                return false;
            }
            any = true;
        }
        inside = is_cased(c);
    }
    any
}

/// Calls `write` for each character of a text. The second argument of `write` is the character in
/// lower case. The lower case of a sigma depends on the neighbouring characters.
fn recased(text: &str, mut write: impl FnMut(char, &str, &mut String)) -> String {
    let (lower, mut out) = (text.to_lowercase(), String::with_capacity(text.len()));
    let mut rest = &*lower;
    for c in text.chars() {
        let (small, behind) = rest.split_at(c.to_lowercase().map(char::len_utf8).sum());
        write(c, small, &mut out);
        rest = behind;
    }
    out
}

/// Converts a character to its titlecase form.
fn title_of(c: char) -> String {
    let own = match c {
        'Ǆ'..='ǆ' => 'ǅ',
        'Ǉ'..='ǉ' => 'ǈ',
        'Ǌ'..='ǌ' => 'ǋ',
        'Ǳ'..='ǳ' => 'ǲ',
        // Georgian has capital letters, but a word does not begin with a capital letter.
        'ა'..='ჺ' | 'ჽ'..='ჿ' => c,
        'ᾀ'..='ᾇ' | 'ᾐ'..='ᾗ' | 'ᾠ'..='ᾧ' => char::from_u32(u32::from(c) + 8).unwrap_or(c),
        'ᾳ' => 'ᾼ',
        'ῃ' => 'ῌ',
        'ῳ' => 'ῼ',
        c if is_titlecase(c) => c,
        'ŉ' => return "ʼN".into(),
        _ => {
            let mut upper = c.to_uppercase();
            let first = upper.next().unwrap_or(c);
            // An iota below a vowel stays below the vowel.
            let rest = upper.flat_map(|rest| match rest {
                'Ι' => '\u{345}'.to_lowercase(),
                rest => rest.to_lowercase(),
            });
            return std::iter::once(first).chain(rest).collect();
        }
    };
    own.into()
}

fn title(text: &str) -> String {
    let mut inside = false;
    recased(text, |c, small, out| {
        if inside {
            out.push_str(small)
        } else {
            out.push_str(&title_of(c))
        }
        inside = is_cased(c);
    })
}

pub fn capitalize(text: &str) -> String {
    recased(
        text,
        |c, small, out| {
            if out.is_empty() { out.push_str(&title_of(c)) } else { out.push_str(small) }
        },
    )
}

fn swapcase(text: &str) -> String {
    recased(text, |c, small, out| match c {
        c if c.is_lowercase() => out.extend(c.to_uppercase()),
        c if c.is_uppercase() => out.push_str(small),
        c => out.push(c),
    })
}
