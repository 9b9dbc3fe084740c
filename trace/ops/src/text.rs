//! Parses the text form of traces, and defines the text form of attributes.

use std::fmt::Write as _;

use crate::{ElementType, TensorType};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: expected {expected}, found `{found}`")]
pub struct ParseError {
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    pub expected: String,
    pub found: String,
}

/// Reads a text from start to end. Skips blanks before a token, but never a line end.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    fn rest(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let trimmed = rest.trim_start_matches([' ', '\t']);
        self.at += rest.len() - trimmed.len();
        trimmed
    }

    /// Whether only blanks and line ends are left after the cursor.
    pub fn at_end(&mut self) -> bool {
        self.rest().trim_start().is_empty()
    }

    pub fn end(&mut self) -> Result<(), ParseError> {
        if self.at_end() { Ok(()) } else { self.error("the end") }
    }

    /// The error that the text here is not `expected`.
    pub fn error<T>(&mut self, expected: impl Into<String>) -> Result<T, ParseError> {
        let found = self.rest().split(['\n', ' ']).next().unwrap_or_default().chars().take(40).collect();
        let before = &self.text[..self.at];
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        Err(ParseError {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            expected: expected.into(),
            found,
        })
    }

    /// Skips the next token if it is `token`.
    pub fn eat(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    pub fn expect(&mut self, token: &str) -> Result<(), ParseError> {
        if self.eat(token) { Ok(()) } else { self.error(format!("`{}`", token.escape_debug())) }
    }

    /// The longest run of characters that `keep` accepts, at least one.
    pub fn take_while(&mut self, what: &str, keep: impl Fn(char) -> bool) -> Result<&'a str, ParseError> {
        let rest = self.rest();
        let length = rest.find(|c| !keep(c)).unwrap_or(rest.len());
        if length == 0 {
            return self.error(what);
        }
        self.at += length;
        Ok(&rest[..length])
    }

    /// Letters, digits and `_`.
    pub fn word(&mut self) -> Result<&'a str, ParseError> {
        self.take_while("a name", |c| c.is_alphanumeric() || c == '_')
    }

    /// Reads a quoted string, in which `"`, `\` and control characters are escaped as in Rust.
    pub fn string(&mut self) -> Result<String, ParseError> {
        self.expect("\"")?;
        let mut value = String::new();
        let mut chars = self.text[self.at..].char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += i + 1;
                    return Ok(value);
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, 't')) => value.push('\t'),
                    Some((_, c)) => value.push(c),
                    None => break,
                },
                c => value.push(c),
            }
        }
        self.error("a closing `\"`")
    }

    /// `[a,b,…]`.
    pub fn list<T: Attribute>(&mut self) -> Result<Vec<T>, ParseError> {
        self.expect("[")?;
        let mut items = Vec::new();
        while !self.eat("]") {
            if !items.is_empty() {
                self.expect(",")?;
            }
            items.push(T::parse(self)?);
        }
        Ok(items)
    }
}

/// The notation that [`Reader::string`] reads.
pub fn print_string(value: &str, out: &mut String) {
    out.push('"');
    for c in value.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// A value of an operation that is not an operand, with its text form.
pub trait Attribute: Sized {
    fn print(&self, out: &mut String);
    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError>;
}

impl Attribute for usize {
    fn print(&self, out: &mut String) {
        let _ = write!(out, "{self}");
    }
    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let digits = reader.take_while("a number", |c| c.is_ascii_digit())?;
        digits.parse().or_else(|_| reader.error("a number that fits 64 bits"))
    }
}

/// Equal if the bits are, so that it can be a key in a map.
#[derive(Clone, Copy, Debug)]
pub struct Real(pub f64);

impl PartialEq for Real {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}
impl Eq for Real {}
impl std::hash::Hash for Real {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}
impl PartialOrd for Real {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Real {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Attribute for Real {
    fn print(&self, out: &mut String) {
        // Rust prints the shortest text that parses to the same bits. A NaN is printed as hex
        // digits, so that it keeps its payload.
        let _ = if self.0.is_nan() {
            write!(out, "0x{:016x}", self.0.to_bits())
        } else {
            write!(out, "{:?}", self.0)
        };
    }
    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        if reader.eat("0x") {
            let digits = reader.take_while("hex digits", |c| c.is_ascii_hexdigit())?;
            let bits = u64::from_str_radix(digits, 16);
            return bits.map(|b| Self(f64::from_bits(b))).or_else(|_| reader.error("16 hex digits"));
        }
        let digits =
            reader.take_while("a real number", |c| c.is_ascii_alphanumeric() || "+-.".contains(c))?;
        digits.parse().map(Self).or_else(|_| reader.error("a real number"))
    }
}

impl<T: Attribute> Attribute for Vec<T> {
    fn print(&self, out: &mut String) {
        out.push('[');
        for (i, item) in self.iter().enumerate() {
            if i > 0 {
                out.push(',');
            }
            item.print(out);
        }
        out.push(']');
    }
    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        reader.list()
    }
}

impl<T: Attribute> Attribute for Option<T> {
    fn print(&self, out: &mut String) {
        match self {
            Some(value) => value.print(out),
            None => out.push_str("none"),
        }
    }
    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        if reader.eat("none") { Ok(None) } else { T::parse(reader).map(Some) }
    }
}

impl Attribute for bool {
    fn print(&self, out: &mut String) {
        let _ = write!(out, "{self}");
    }
    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        match reader.word()? {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => reader.error("`true` or `false`"),
        }
    }
}

impl Attribute for ElementType {
    fn print(&self, out: &mut String) {
        out.push_str(self.name());
    }
    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let word = reader.word()?;
        word.parse().or_else(|e: crate::UnknownElementType| reader.error(e.to_string()))
    }
}

impl Attribute for TensorType {
    fn print(&self, out: &mut String) {
        let _ = write!(out, "{self}");
    }
    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self { element: ElementType::parse(reader)?, shape: reader.list()? })
    }
}

/// Implements [`Attribute`] for an enum whose variants are plain words, from a single list of these words.
#[macro_export]
macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$doc])* $variant),* }
        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }
        }
        impl $crate::Attribute for $name {
            fn print(&self, out: &mut String) {
                out.push_str(self.word());
            }
            fn parse(reader: &mut $crate::Reader<'_>) -> Result<Self, $crate::ParseError> {
                let mut ahead = reader.clone();
                match ahead.word()? {
                    $($word => { *reader = ahead; Ok(Self::$variant) })*
                    _ => reader.error(concat!("one of", $(" `", $word, "`"),*)),
                }
            }
        }
    };
}
