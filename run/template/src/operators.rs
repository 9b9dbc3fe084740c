//! Rewrites the operators of a tag to filters. minijinja's own operators print numbers differently
//! from Python, overflow beyond 128 bits, and forget that a string is marked as `safe`.

/// The binary operators that become filters, each with its filter. Each group binds more strongly
/// than the previous group.
const GROUPS: [&[(&str, &str)]; 4] = [
    &[("+", "__add__"), ("-", "__sub__")],
    &[("~", "__concat__")],
    &[("*", "__mul__"), ("//", "__floordiv__"), ("/", "__truediv__"), ("%", "__rem__")],
    &[("**", "__pow__")],
];

/// The comparisons. The comparisons without a filter are minijinja's own.
const COMPARISONS: [(&str, Option<&str>); 6] = [
    ("==", None),
    ("!=", None),
    ("<=", Some("__le__")),
    (">=", Some("__ge__")),
    ("<", Some("__lt__")),
    (">", Some("__gt__")),
];

pub const NEGATIVE: &str = "__neg__";
pub const POSITIVE: &str = "__pos__";

/// The filter that creates an integer from its digits. minijinja reads integers of at most 128 bits.
pub const INTEGER: &str = "__integer__";

/// The largest number of digits that always fit into 127 bits.
const DIGITS: usize = 38;

/// The words that cannot begin an operand.
const KEYWORDS: [&str; 10] = ["if", "elif", "else", "and", "or", "not", "in", "is", "recursive", "import"];

/// The deepest nesting of brackets and signs. minijinja rejects templates that nest deeper.
const DEEPEST: usize = 150;

/// Rewrites the text between the delimiters of a tag. If the text is no valid Jinja, the result is
/// the text, and minijinja reports the error.
pub fn with_filters(inner: &str, is_statement: bool) -> String {
    let (before, code) = inner.split_at(usize::from(inner.starts_with(['-', '+'])));
    let end = code.len() - usize::from(code.ends_with(['-', '+']));
    let (code, behind) = code.split_at(end);
    let mut parser = Parser { text: code, at: 0, depth: 0 };
    let mut out = before.to_owned();
    if is_statement {
        out.push_str(parser.space());
        out.push_str(parser.word());
    }
    match parser.sequence(None) {
        Some(rewritten) => out + &rewritten + behind,
        None => inner.to_owned(),
    }
}

/// Reads the code of a tag. Each function returns rewritten code, or `None` for invalid code.
struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn take(&mut self, len: usize) -> &'a str {
        let taken = &self.text[self.at..self.at + len];
        self.at += len;
        taken
    }

    fn space(&mut self) -> &'a str {
        self.take(self.rest().len() - self.rest().trim_start().len())
    }

    /// The name at the beginning of the rest, without reading it.
    fn peek_word(&self) -> &'a str {
        let rest = self.rest();
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let starts = rest.starts_with(|c: char| is_part(c) && !c.is_ascii_digit());
        if starts { &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())] } else { "" }
    }

    fn word(&mut self) -> &'a str {
        self.take(self.peek_word().len())
    }

    /// Skips white space and then `sign`, if it follows.
    fn skip(&mut self, sign: &str) -> bool {
        self.space();
        let follows = self.rest().starts_with(sign);
        self.at += if follows { sign.len() } else { 0 };
        follows
    }

    /// Whether an operand begins here.
    fn begins(&self) -> bool {
        let word = self.peek_word();
        let is_sign = |c: char| c.is_ascii_digit() || "\"'([{-+".contains(c);
        if word.is_empty() { self.rest().starts_with(is_sign) } else { !KEYWORDS.contains(&word) }
    }

    /// Reads code up to a closing bracket, or to the end of the tag.
    fn sequence(&mut self, close: Option<char>) -> Option<String> {
        let mut out = String::new();
        loop {
            out.push_str(self.space());
            let Some(next) = self.rest().chars().next() else { return close.is_none().then_some(out) };
            if Some(next) == close {
                return Some(out);
            }
            if self.begins() {
                out.push_str(&self.comparison()?);
            } else if ")]}".contains(next) {
                return None;
            } else if self.peek_word().is_empty() {
                out.push_str(self.take(next.len_utf8()));
            } else {
                out.push_str(self.word());
            }
        }
    }

    fn bracket(&mut self) -> Option<String> {
        let open = self.take(1);
        let (_, close) =
            [("(", ')'), ("[", ']'), ("{", '}')].into_iter().find(|(start, _)| *start == open)?;
        let inner = self.deeper(|parser| parser.sequence(Some(close)))?;
        self.at += 1; // `sequence` ended before the closing bracket
        Some(format!("{open}{inner}{close}"))
    }

    fn deeper(&mut self, read: impl FnOnce(&mut Self) -> Option<String>) -> Option<String> {
        if self.depth > DEEPEST {
            return None;
        }
        self.depth += 1;
        let made = read(self);
        self.depth -= 1;
        made
    }

    fn comparison(&mut self) -> Option<String> {
        let mut left = self.binary(&GROUPS)?;
        let mut compared = Vec::new();
        while let Some((sign, filter)) = self.compares() {
            self.space();
            compared.push((sign, filter, self.binary(&GROUPS)?));
        }
        let one = |left: &str, sign: &str, filter: Option<&str>, right: &str| match filter {
            Some(filter) => format!("{left}|{filter}({right})"),
            None => format!("{left} {sign} {right}"),
        };
        match &compared[..] {
            [] => Some(left),
            [(sign, filter, right)] => Some(one(&left, sign, *filter, right)),
            // In a chain such as `a < b < c`, each neighbouring pair is compared.
            all => {
                let mut pairs = Vec::new();
                for (sign, filter, right) in all {
                    pairs.push(one(&left, sign, *filter, right));
                    left.clone_from(right);
                }
                Some(format!("({})", pairs.join(" and ")))
            }
        }
    }

    /// Reads the sign of a comparison, with white space before it.
    fn compares(&mut self) -> Option<(&'static str, Option<&'static str>)> {
        let start = self.at;
        if let Some(found) = COMPARISONS.into_iter().find(|(sign, _)| self.skip(sign)) {
            return Some(found);
        }
        let negated = self.peek_word() == "not";
        if negated {
            self.word();
            self.space();
        }
        if self.peek_word() == "in" {
            self.word();
            return Some((if negated { "not in" } else { "in" }, None));
        }
        self.at = start;
        None
    }

    /// Reads operands of binary operators. Operators of equal strength bind from the left, and so
    /// does `**` in Jinja.
    fn binary(&mut self, groups: &[&[(&str, &str)]]) -> Option<String> {
        let Some((group, stronger)) = groups.split_first() else { return self.unary(true) };
        let mut left = self.binary(stronger)?;
        loop {
            let start = self.at;
            let found = group.iter().find(|(sign, _)| self.skip(sign));
            let Some((_, filter)) = found.filter(|(sign, _)| *sign != "*" || !self.rest().starts_with('*'))
            else {
                self.at = start;
                return Some(left);
            };
            self.space();
            let right = self.binary(stronger)?;
            left.push_str(&format!("|{filter}({right})"));
        }
    }

    /// Reads an operand with its sign. The sign binds more strongly than filters.
    fn unary(&mut self, with_filters: bool) -> Option<String> {
        self.space();
        let sign = self.rest().chars().next().filter(|c| "-+".contains(*c));
        let mut operand = match sign {
            None => self.primary()?,
            Some(sign) => {
                self.at += 1;
                let operand = self.deeper(|parser| parser.unary(false))?;
                match sign {
                    '-' if operand.bytes().all(|c| c.is_ascii_digit() || c == b'.') => format!("-{operand}"),
                    '-' => format!("{operand}|{NEGATIVE}"),
                    _ => format!("{operand}|{POSITIVE}"),
                }
            }
        };
        if sign.is_none() {
            self.attributes(&mut operand)?;
        }
        if with_filters {
            self.filters(&mut operand)?;
        }
        Some(operand)
    }

    fn primary(&mut self) -> Option<String> {
        let next = self.rest().chars().next()?;
        match next {
            '"' | '\'' => {
                let mut text = self.string()?.to_owned();
                // Neighbouring strings are one string.
                loop {
                    let start = self.at;
                    let space = self.space();
                    if !self.rest().starts_with(['"', '\'']) {
                        self.at = start;
                        return Some(text);
                    }
                    text.push_str(space);
                    text.push_str(self.string()?);
                }
            }
            '0'..='9' => Some(self.number()),
            '(' | '[' | '{' => self.bracket(),
            _ => Some(self.word().to_owned()).filter(|word| !word.is_empty() && !KEYWORDS.contains(&&**word)),
        }
    }

    fn string(&mut self) -> Option<&'a str> {
        let rest = self.rest();
        let quote = rest.chars().next()?;
        let mut escaped = true; // the quote that begins the string does not end the string
        let ends = |&(_, c): &(usize, char)| {
            let ends = c == quote && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        };
        let (end, _) = rest.char_indices().find(ends)?;
        Some(self.take(end + 1))
    }

    fn number(&mut self) -> String {
        let rest = self.rest().as_bytes();
        let digits = |from: usize| {
            let is_digit = |c: &&u8| c.is_ascii_digit() || **c == b'_';
            from + rest.get(from..).unwrap_or_default().iter().take_while(is_digit).count()
        };
        if rest.len() > 1 && rest[0] == b'0' && rest[1].is_ascii_alphabetic() {
            let end = self.rest().find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            return self.take(end.unwrap_or(rest.len())).to_owned();
        }
        let whole = digits(0);
        let mut end = whole;
        if rest.get(end) == Some(&b'.') && rest.get(end + 1).is_some_and(u8::is_ascii_digit) {
            end = digits(end + 1);
        }
        if rest.get(end).is_some_and(|c| c.eq_ignore_ascii_case(&b'e')) {
            let sign = usize::from(rest.get(end + 1).is_some_and(|c| b"+-".contains(c)));
            if rest.get(end + 1 + sign).is_some_and(u8::is_ascii_digit) {
                end = digits(end + 1 + sign);
            }
        }
        let text = self.take(end);
        if end == whole && whole > DIGITS { format!("'{text}'|{INTEGER}") } else { text.to_owned() }
    }

    /// Reads the attributes, items and calls after an operand.
    fn attributes(&mut self, operand: &mut String) -> Option<()> {
        loop {
            let start = self.at;
            self.space();
            match self.rest().chars().next() {
                Some('.') => {
                    operand.push_str(self.take(1));
                    self.space();
                    let end = self.rest().find(|c: char| !c.is_alphanumeric() && c != '_');
                    let name = self.take(end.unwrap_or(self.rest().len()));
                    operand.push_str(Some(name).filter(|name| !name.is_empty())?);
                }
                Some('(' | '[') => operand.push_str(&self.bracket()?),
                _ => {
                    self.at = start;
                    return Some(());
                }
            }
        }
    }

    /// Reads the filters and tests after an operand.
    fn filters(&mut self, operand: &mut String) -> Option<()> {
        loop {
            let start = self.at;
            if self.skip("|") {
                operand.push('|');
            } else if self.peek_word() == "is" {
                self.word();
                operand.push_str(" is ");
                self.space();
                if self.peek_word() == "not" {
                    self.word();
                    operand.push_str("not ");
                }
                self.name(operand)?;
                self.argument_of_test(operand)?;
                continue;
            } else {
                self.at = start;
                return Some(());
            }
            self.name(operand)?;
            self.call(operand)?;
        }
    }

    /// Reads the name of a filter or of a test.
    fn name(&mut self, operand: &mut String) -> Option<()> {
        self.space();
        operand.push_str(Some(self.word()).filter(|name| !name.is_empty())?);
        while self.rest().starts_with('.') {
            operand.push_str(self.take(1));
            operand.push_str(self.word());
        }
        Some(())
    }

    fn call(&mut self, operand: &mut String) -> Option<()> {
        let start = self.at;
        self.space();
        if self.rest().starts_with('(') {
            operand.push_str(&self.bracket()?)
        } else {
            self.at = start
        }
        Some(())
    }

    /// Reads the arguments of a test, which need no brackets for a single argument.
    fn argument_of_test(&mut self, operand: &mut String) -> Option<()> {
        let start = self.at;
        self.space();
        if self.rest().starts_with('(') {
            operand.push_str(&self.bracket()?);
        } else if self.begins() {
            let argument = self.unary(false)?;
            let has_filter = argument.ends_with("__");
            operand.push_str(&if has_filter { format!(" ({argument})") } else { format!(" {argument}") });
        } else {
            self.at = start;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_become_filters() {
        for (code, expected) in [
            (" a + b ", " a|__add__(b) "),
            (" a + b * c ** -d.e|f - 1 ", " a|__add__(b|__mul__(c|__pow__(d.e|__neg__|f)))|__sub__(1) "),
            (" a ~ 'b' 'c~d' ~ [e ~ f] ", " a|__concat__('b' 'c~d')|__concat__([e|__concat__(f)]) "),
            (" -1 ~ -x ~ +y ", " -1|__concat__(x|__neg__)|__concat__(y|__pos__) "),
            (" a // b / c % d ", " a|__floordiv__(b)|__truediv__(c)|__rem__(d) "),
            (" a < b + 1 ", " a|__lt__(b|__add__(1)) "),
            (" a <b<= c ", " (a|__lt__(b) and b|__le__(c)) "),
            (" a not in b and not c == -d ", " a not in b and not c == d|__neg__ "),
            (" a if b is defined and c - 1 else d ", " a if b is defined and c|__sub__(1) else d "),
            (" a is not divisibleby b + 1 ", " a is not divisibleby b|__add__(1) "),
            (" a is divisibleby -b ", " a is divisibleby (b|__neg__) "),
            (
                " f(*a, **b, c=d * e)[-1:x - 1].g(1 - 2) ",
                " f(*a, **b, c=d|__mul__(e))[-1:x|__sub__(1)].g(1|__sub__(2)) ",
            ),
            (" {'a': b ~ c, 'd': e} ", " {'a': b|__concat__(c), 'd': e} "),
            (" 1.5e-3 - 1e5 + 0x1F ", " 1.5e-3|__sub__(1e5)|__add__(0x1F) "),
            (" 1.x + x.0.1 ", " 1.x|__add__(x.0.1) "),
            (&format!(" -{} ", "1".repeat(39)), &format!(" '{}'|__integer__|__neg__ ", "1".repeat(39))),
            ("- a + 'it\\'s' -", "- a|__add__('it\\'s') -"),
            // This code is invalid.
            (" (1 + ", " (1 + "),
            (" 1 + ) ", " 1 + ) "),
            (" 'a + b ", " 'a + b "),
        ] {
            assert_eq!(with_filters(code, false), expected);
        }
        for (code, expected) in [
            (" set x = -y ", " set x = y|__neg__ "),
            ("- elif a - 1 -", "- elif a|__sub__(1) -"),
            (" for a, b in x|f if -a > 1 ", " for a, b in x|f if a|__neg__|__gt__(1) "),
            (" call(a) m(b + 1) ", " call(a) m(b|__add__(1)) "),
            (" with a = b + c, d = e ", " with a = b|__add__(c), d = e "),
            (" macro m(a, b=1 + 1) ", " macro m(a, b=1|__add__(1)) "),
        ] {
            assert_eq!(with_filters(code, true), expected);
        }
    }
}
