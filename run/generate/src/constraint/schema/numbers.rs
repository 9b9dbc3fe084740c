//! The texts of numbers in a schema, and regular expressions for ranges. llguidance reads numbers as f64. A
//! number that would lose digits first becomes a string of a mark and its text.

use std::fmt;

use llguidance::derivre::RegexAst;
use serde_json::Value;

/// The largest integer up to which f64 represents every integer.
const EXACT: u64 = 1 << 53;

/// The most digits that an integer part may have in the bounds of a range.
const DIGITS: i32 = 400;

/// Replaces the numbers that an f64 or an i64 can change by strings. Returns the parsed document
/// and the mark, which is a character that the document does not contain.
pub fn parse(text: &str) -> Result<(Value, char), serde_json::Error> {
    serde_json::from_str::<serde::de::IgnoredAny>(text)?;
    let lower = text.to_ascii_lowercase();
    let is_free = |mark: &char| {
        let mut units = [0; 2];
        mark.encode_utf16(&mut units);
        !text.contains(*mark) && !lower.contains(&format!("\\u{:04x}\\u{:04x}", units[0], units[1]))
    };
    // A text cannot contain all of 65,534 private characters with a weight of 4 bytes by accident.
    let mark = ('\u{f0000}'..='\u{ffffd}').find(is_free).unwrap_or('\u{f0000}');
    let (mut marked, mut rest) = (String::with_capacity(text.len() + 64), text);
    while let Some(at) = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit()) {
        marked.push_str(&rest[..at]);
        rest = &rest[at..];
        let is_of_number = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
        let length = if rest.starts_with('"') {
            super::super::grammars::delimited(rest)
        } else {
            rest.find(|c| !is_of_number(c))
        };
        let (token, after) = rest.split_at(length.unwrap_or(rest.len()));
        if token.starts_with('"') || is_exact(token) {
            marked.push_str(token)
        } else {
            marked.extend(["\"", mark.encode_utf8(&mut [0; 4]), token, "\""])
        }
        rest = after;
    }
    marked.push_str(rest);
    Ok((serde_json::from_str(&marked)?, mark))
}

fn is_exact(token: &str) -> bool {
    token != "-0" && token.parse::<i64>().is_ok_and(|number| number.unsigned_abs() <= EXACT)
}

/// Returns the text of a number of a document that [`parse`] returned.
pub fn text(value: &Value, mark: char) -> Option<String> {
    match value {
        Value::Number(number) => Some(number.to_string()),
        Value::String(text) => text.strip_prefix(mark).map(str::to_owned),
        _ => None,
    }
}

/// Returns the text of `json.dumps(json.loads(text))` in Python, or `None` if Python reads infinity.
pub fn in_python(text: &str) -> Option<String> {
    if !text.contains(['.', 'e', 'E']) {
        return Some(if text == "-0" { "0" } else { text }.to_owned());
    }
    text.parse::<f64>().ok().filter(|number| number.is_finite()).map(files::python_float)
}

/// The value as an `f64`, if llguidance prints it like Python, or reads a bound without a change.
pub fn plain(text: &str) -> Option<Value> {
    if !text.contains(['.', 'e', 'E']) {
        return is_exact(text).then(|| serde_json::from_str(text).ok())?;
    }
    let number = text.parse::<f64>().ok().filter(|number| number.abs() < EXACT as f64)?;
    (in_python(text)? == number.to_string()).then(|| Value::from(number))
}

/// A decimal number without rounding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decimal {
    is_negative: bool,
    /// The digits of the integer part, without leading zeros, or `0`.
    integer: String,
    /// The digits after the point, without zeros at the end.
    fraction: String,
}

impl Decimal {
    /// Returns `None` if the integer part or the fraction has more than [`DIGITS`] digits.
    pub fn parse(text: &str) -> Option<Self> {
        let (is_negative, unsigned) = (text.starts_with('-'), text.trim_start_matches('-'));
        let (digits, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
        let (integer, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let exponent: i32 = exponent.parse().ok()?;
        let all = format!("{integer}{fraction}");
        let point = i32::try_from(integer.len()).ok()?.checked_add(exponent)?;
        if !(-DIGITS..=DIGITS).contains(&point) || all.len() > 2 * DIGITS as usize {
            return None;
        }
        let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or_default());
        let padded = format!("{}{all}{}", zeros(-point), zeros(point - all.len() as i32));
        let (integer, fraction) = padded.split_at(usize::try_from(point).unwrap_or_default());
        let integer = Some(integer.trim_start_matches('0')).filter(|digits| !digits.is_empty());
        let fraction = fraction.trim_end_matches('0').to_owned();
        let integer = integer.unwrap_or("0").to_owned();
        let is_zero = integer == "0" && fraction.is_empty();
        Some(Self { is_negative: is_negative && !is_zero, integer, fraction })
    }

    pub fn is_integer(&self) -> bool {
        self.fraction.is_empty()
    }

    pub fn is_positive(&self) -> bool {
        !self.is_negative && !self.is_zero()
    }

    pub fn to_u32(&self) -> Option<u32> {
        self.to_string().parse().ok()
    }

    /// Returns a step as a coefficient of at most 9 digits and a number of decimal places.
    pub fn to_step(&self) -> Option<(u32, u32)> {
        let digits: u32 = format!("{}{}", self.integer, self.fraction).parse().ok()?;
        Some((digits, u32::try_from(self.fraction.len()).ok()?))
    }

    fn is_zero(&self) -> bool {
        self.integer == "0" && self.fraction.is_empty()
    }

    /// Whether llguidance's own ranges are exact for this bound.
    fn is_plain(&self) -> bool {
        let zeros = self.fraction.len() - self.fraction.trim_start_matches('0').len();
        self.integer.parse::<u64>().is_ok_and(|integer| integer < EXACT) && zeros < 20
    }

    /// Whether numbers of this size are usually written with an exponent.
    fn is_vast(&self) -> bool {
        self.integer.len() > 16
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        let magnitude = |one: &Self| (one.integer.len(), one.integer.clone(), one.fraction.clone());
        Some(match (self.is_negative, other.is_negative) {
            (false, false) => magnitude(self).cmp(&magnitude(other)),
            (true, true) => magnitude(other).cmp(&magnitude(self)),
            (true, false) => std::cmp::Ordering::Less,
            (false, true) => std::cmp::Ordering::Greater,
        })
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let point = if self.fraction.is_empty() { "" } else { "." };
        write!(f, "{}{}{point}{}", if self.is_negative { "-" } else { "" }, self.integer, self.fraction)
    }
}

/// Whether llguidance, which multiplies an f64 by 10 until it is whole, finds the decimal places of a step.
pub fn is_plain_step(text: &str) -> bool {
    let (Some(decimal), Ok(mut step)) = (Decimal::parse(text), text.parse::<f64>()) else { return false };
    let mut places = 0;
    while step.fract() != 0.0 && places < 20 {
        step *= 10.0;
        places += 1;
    }
    decimal.to_step().is_some_and(|exact| exact == (step as u32, places))
}

/// An end of a range of numbers.
#[derive(Clone, Debug)]
pub struct RangeEnd {
    pub at: Decimal,
    pub is_exclusive: bool,
}

/// The numbers between two bounds.
#[derive(Clone, Debug, Default)]
pub struct Range {
    pub low: Option<RangeEnd>,
    pub high: Option<RangeEnd>,
}

impl Range {
    /// Narrows the lower end of the range.
    pub fn raise(&mut self, bound: RangeEnd) {
        let is_higher = |low: &RangeEnd| {
            bound.at > low.at || (bound.at == low.at && (bound.is_exclusive || !low.is_exclusive))
        };
        if self.low.as_ref().is_none_or(is_higher) {
            self.low = Some(bound);
        }
    }

    /// Narrows the upper end of the range.
    pub fn lower(&mut self, bound: RangeEnd) {
        let is_lower = |high: &RangeEnd| {
            bound.at < high.at || (bound.at == high.at && (bound.is_exclusive || !high.is_exclusive))
        };
        if self.high.as_ref().is_none_or(is_lower) {
            self.high = Some(bound);
        }
    }

    pub fn contains(&self, number: &Decimal) -> bool {
        let above = |low: &RangeEnd| *number > low.at || (*number == low.at && !low.is_exclusive);
        let below = |high: &RangeEnd| *number < high.at || (*number == high.at && !high.is_exclusive);
        self.low.as_ref().is_none_or(above) && self.high.as_ref().is_none_or(below)
    }

    /// Whether llguidance's f64 ranges are exact here. It allows an excluded bound in the same integer part.
    pub fn is_plain(&self) -> bool {
        let is_close = match (&self.low, &self.high) {
            (Some(low), Some(high)) => {
                low.at.integer == high.at.integer && (low.is_exclusive || high.is_exclusive)
            }
            _ => false,
        };
        !is_close && self.low.iter().chain(&self.high).all(|bound| bound.at.is_plain())
    }

    /// The length of the range's regular expression, roughly.
    pub fn cost(&self) -> usize {
        let digits = |bound: &RangeEnd| bound.at.integer.len() + bound.at.fraction.len();
        self.low.iter().chain(&self.high).map(|bound| 2 * digits(bound) * digits(bound) + 100).sum()
    }

    /// Whether the range contains no number, or at most one point.
    pub fn is_empty(&self) -> bool {
        match (&self.low, &self.high) {
            (Some(low), Some(high)) => {
                low.at > high.at || (low.at == high.at && (low.is_exclusive || high.is_exclusive))
            }
            _ => false,
        }
    }

    /// A regular expression for the range. Exponents are allowed only if a bound is usually written with one.
    pub fn regex(&self, is_integer: bool) -> RegexAst {
        let vast = self.low.iter().chain(&self.high).any(|bound| bound.at.is_vast());
        let shape = Shape { is_integer, exponents: vast && !is_integer };
        let zero = |is_exclusive| RangeEnd { is_exclusive, ..whole("0".to_owned()) };
        let is_below = |bound: &&RangeEnd| bound.at.is_negative || bound.at.is_zero();
        let is_above = |bound: &&RangeEnd| !bound.at.is_negative;
        let mut parts = Vec::new();
        if self.high.as_ref().is_none_or(|high| is_above(&high)) {
            let low = self.low.as_ref().filter(is_above).cloned();
            parts.push(shape.between(&low.unwrap_or_else(|| zero(false)), self.high.as_ref()));
        }
        if self.low.as_ref().is_none_or(|low| low.at.is_negative) {
            let nearest = self.high.as_ref().filter(is_below).cloned();
            let nearest = nearest.filter(|high| !high.at.is_zero()).unwrap_or_else(|| zero(true));
            let negative = shape.between(&nearest, self.low.as_ref());
            parts.push(RegexAst::Concat(vec![RegexAst::Literal("-".to_owned()), negative]));
        }
        RegexAst::Or(parts)
    }
}

/// Returns a bound without a fraction, which belongs to the range.
fn whole(digits: String) -> RangeEnd {
    RangeEnd {
        at: Decimal { is_negative: false, integer: digits, fraction: String::new() },
        is_exclusive: false,
    }
}

#[derive(Clone, Copy)]
struct Shape {
    is_integer: bool,
    exponents: bool,
}

impl Shape {
    fn any_fraction(self) -> &'static str {
        if self.is_integer { "" } else { "(\\.[0-9]+)?" }
    }

    /// Returns the numbers without a sign between the magnitudes of two bounds.
    fn between(self, low: &RangeEnd, high: Option<&RangeEnd>) -> RegexAst {
        let mut all = vec![RegexAst::Regex(self.at_least(low))];
        all.extend(high.map(|high| RegexAst::Regex(self.at_most(high))));
        RegexAst::And(all)
    }

    fn at_most(self, bound: &RangeEnd) -> String {
        let (integer, any) = (&bound.at.integer, self.any_fraction());
        let count = integer.len();
        let mut parts = Vec::new();
        if count > 1 {
            parts.push(format!("(0|[1-9][0-9]{{0,{}}}){any}", count - 2));
        }
        for (at, digit) in integer.bytes().enumerate() {
            let least = if at == 0 && count > 1 { b'1' } else { b'0' };
            if digit > least {
                let (same, rest) = (&integer[..at], count - 1 - at);
                let range = format!("[{}-{}]", char::from(least), char::from(digit - 1));
                parts.push(format!("{same}{range}[0-9]{{{rest}}}{any}"));
            }
        }
        parts.extend(self.fractions(bound, false));
        if self.exponents {
            let most = whole(count.saturating_sub(2).to_string());
            let exponent = Self { is_integer: true, exponents: false }.at_most(&most);
            parts.push(format!("[0-9](\\.[0-9]+)?[eE](\\+?({exponent})|-[0-9]+)"));
        }
        alternatives(&parts)
    }

    fn at_least(self, bound: &RangeEnd) -> String {
        let (integer, any) = (&bound.at.integer, self.any_fraction());
        let count = integer.len();
        let mut parts = vec![format!("[1-9][0-9]{{{count},}}{any}")];
        for (at, digit) in integer.bytes().enumerate() {
            if digit < b'9' {
                let (same, rest) = (&integer[..at], count - 1 - at);
                let range = format!("[{}-9]", char::from(digit + 1));
                parts.push(format!("{same}{range}[0-9]{{{rest}}}{any}"));
            }
        }
        parts.extend(self.fractions(bound, true));
        if self.exponents && bound.at.is_zero() && !bound.is_exclusive {
            parts.push("[0-9](\\.[0-9]+)?[eE][+-]?[0-9]+".to_owned());
        } else if self.exponents {
            let least = whole(count.to_string());
            let exponent = Self { is_integer: true, exponents: false }.at_least(&least);
            parts.push(format!("[1-9](\\.[0-9]+)?[eE]\\+?({exponent})"));
            if bound.at.is_zero() {
                parts.push("[1-9](\\.[0-9]+)?[eE]([+-]?[0-9]|-[0-9]+)".to_owned());
            }
        }
        alternatives(&parts)
    }

    /// The numbers with the bound's integer part, and a fraction of at least or at most the bound's.
    fn fractions(self, bound: &RangeEnd, is_least: bool) -> Vec<String> {
        let (integer, fraction) = (&bound.at.integer, &bound.at.fraction);
        let (mut parts, inclusive) = (Vec::new(), !bound.is_exclusive);
        if fraction.is_empty() {
            match (is_least, self.is_integer) {
                (_, true) => parts.extend(inclusive.then(|| integer.clone())),
                (true, false) if inclusive => parts.push(format!("{integer}(\\.[0-9]+)?")),
                (true, false) => parts.push(format!("{integer}\\.[0-9]*[1-9][0-9]*")),
                (false, false) => parts.extend(inclusive.then(|| format!("{integer}(\\.0+)?"))),
            }
            return parts;
        }
        if !is_least {
            parts.push(integer.clone());
        }
        if self.is_integer {
            return parts;
        }
        for (at, digit) in fraction.bytes().enumerate() {
            let same = &fraction[..at];
            if is_least && digit < b'9' {
                parts.push(format!("{integer}\\.{same}[{}-9][0-9]*", char::from(digit + 1)));
            } else if !is_least && digit > b'0' {
                parts.push(format!("{integer}\\.{same}[0-{}][0-9]*", char::from(digit - 1)));
            }
            if !is_least && at > 0 {
                parts.push(format!("{integer}\\.{same}"));
            }
        }
        match (is_least, inclusive) {
            (true, true) => parts.push(format!("{integer}\\.{fraction}[0-9]*")),
            (true, false) => parts.push(format!("{integer}\\.{fraction}[0-9]*[1-9][0-9]*")),
            (false, true) => parts.push(format!("{integer}\\.{fraction}0*")),
            (false, false) => {}
        }
        parts
    }
}

fn alternatives(parts: &[String]) -> String {
    match parts {
        // A class without characters matches nothing.
        [] => "[^\\s\\S]".to_owned(),
        parts => format!("({})", parts.join("|")),
    }
}

#[cfg(test)]
mod tests {
    use llguidance::derivre::RegexBuilder;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_is_printed_as_python_prints_it() {
        for (text, expected) in [
            ("1234567890123456789", Some("1234567890123456789")),
            ("-0", Some("0")),
            ("-0.0", Some("-0.0")),
            ("1.0", Some("1.0")),
            ("53.630839129292724", Some("53.630839129292724")),
            ("1e15", Some("1000000000000000.0")),
            ("1e16", Some("1e+16")),
            ("0.0001", Some("0.0001")),
            ("0.00001", Some("1e-05")),
            ("1.5E-7", Some("1.5e-07")),
            ("5e-324", Some("5e-324")),
            ("1.7976931348623157e308", Some("1.7976931348623157e+308")),
            ("1e400", None),
        ] {
            assert_eq!(in_python(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn only_numbers_outside_strings_are_marked() {
        let (value, mark) =
            parse(r#"{"a-1": "2.5 \" -1e5", "b": [2.5, -7, 1e2, 18446744073709551616]}"#).unwrap();
        let words = value.to_string().replace(mark, "#");
        assert_eq!(words, r##"{"a-1":"2.5 \" -1e5","b":["#2.5",-7,"#1e2","#18446744073709551616"]}"##);
        let invalid = "{\"a\": 01}";
        let column = serde_json::from_str::<Value>(invalid).unwrap_err().column();
        assert_eq!(parse(invalid).unwrap_err().column(), column);
    }

    fn bound(text: &str, is_exclusive: bool) -> RangeEnd {
        RangeEnd { at: Decimal::parse(text).unwrap(), is_exclusive }
    }

    proptest! {
        /// The regular expression of a range matches the numbers between the bounds.
        #[test]
        fn a_range_matches_the_numbers_between_its_bounds(
            ends in prop::collection::vec((-3000i64..3000, 0u32..4, any::<bool>()), 2),
            missing in 0u8..4,
            scale in prop::sample::select(vec!["", "00000000000000000"]),
            numbers in prop::collection::vec((-3500i64..3500, 0u32..5), 30),
            is_integer in any::<bool>(),
        ) {
            let decimal = |number: i64, places: u32| {
                let places = if is_integer { 0 } else { places as usize };
                let digits = format!("{:0>1$}{scale}", number.unsigned_abs(), places + 1);
                let (integer, fraction) = digits.split_at(digits.len() - places);
                // JSON numbers begin with a single zero at most.
                let zeros = integer.bytes().take_while(|&digit| digit == b'0').count();
                let integer = &integer[zeros.min(integer.len() - 1)..];
                let sign = if number < 0 { "-" } else { "" };
                let point = if fraction.is_empty() { "" } else { "." };
                format!("{sign}{integer}{point}{fraction}")
            };
            let mut range = Range::default();
            if missing & 1 == 0 {
                range.raise(bound(&decimal(ends[0].0, ends[0].1), ends[0].2));
            }
            if missing & 2 == 0 {
                range.lower(bound(&decimal(ends[1].0, ends[1].1), ends[1].2));
            }
            let mut builder = RegexBuilder::new();
            let regex = builder.mk(&range.regex(is_integer)).unwrap();
            let mut regex = builder.to_regex(regex);
            for (number, places) in numbers.into_iter().chain(ends.iter().map(|&(n, p, _)| (n, p))) {
                let text = decimal(number, places);
                if number == 0 && text.starts_with('-') {
                    continue;
                }
                let at = Decimal::parse(&text).unwrap();
                prop_assert_eq!(regex.is_match(&text), range.contains(&at), "{} in {:?}", text, range);
            }
        }
    }

    #[test]
    fn vast_bounds_allow_exponents() {
        let mut range = Range::default();
        range.raise(bound("-1.7976931348623157e308", false));
        range.lower(bound("1.7976931348623157e308", false));
        let mut builder = RegexBuilder::new();
        let regex = builder.mk(&range.regex(false)).unwrap();
        let mut regex = builder.to_regex(regex);
        for (text, expected) in [
            ("1e+300", true),
            ("-2.5e-07", true),
            ("0.5", true),
            ("-0.5", true),
            ("0", true),
            ("1e+309", false),
            ("9e+308", false),
            ("1e", false),
        ] {
            assert_eq!(regex.is_match(text), expected, "{text}");
        }
    }
}
