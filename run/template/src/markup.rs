//! Python's `markupsafe.Markup`, which is the type of strings that a template marks as `safe`, and
//! Jinja's filter `striptags`.

use minijinja::value::from_args;
use minijinja::{Error, Value};

use crate::budget::Budget;
use crate::escape::{all_like, escaped, like};
use crate::str_methods::is_space;
use crate::{format, invalid, repr_json, str_methods};

/// The methods of `Markup` whose results are marked as `safe`.
const SAFE: &str = "capitalize center expandtabs join ljust lower lstrip partition removeprefix removesuffix replace \
    rjust rpartition rsplit rstrip split splitlines strip swapcase title upper zfill";

/// Calls a method of a string. If the string is marked as `safe`, a method that inserts another text
/// escapes that text.
pub fn call(budget: Budget, mark: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let text = mark.as_str().unwrap_or_default();
    match method {
        "format" => format::format(budget, text, args, mark.is_safe()).map(|made| like(mark, made)),
        "format_map" => {
            let (mapping,): (&Value,) = from_args(args)?;
            format::format_map(budget, text, mapping, mark.is_safe()).map(|made| like(mark, made))
        }
        _ if !mark.is_safe() => str_methods::call(budget, text, method, args),
        "striptags" => {
            let () = from_args(args)?;
            striptags(mark).map(Value::from)
        }
        "unescape" => {
            let () = from_args(args)?;
            unescape(text).map(Value::from)
        }
        "escape" => {
            let (value,): (&Value,) = from_args(args)?;
            Ok(Value::from_safe_string(escaped(value)?))
        }
        "join" => {
            let (list,): (&Value,) = from_args(args)?;
            budget.check_join(list, text.len())?;
            let texts = list.try_iter()?.map(|item| escaped(&item)).collect::<Result<Vec<_>, _>>()?;
            budget.check_bytes(texts.iter().map(|item| item.len() + text.len()).sum())?;
            Ok(Value::from_safe_string(texts.join(text)))
        }
        "replace" | "center" | "ljust" | "rjust" if args.len() > 1 => {
            let mut args = args.to_vec();
            // The second argument is the new text or the fill character.
            args[1] = Value::from(escaped(&args[1])?);
            all_like(mark, str_methods::call(budget, text, method, &args)?)
        }
        _ if SAFE.split(' ').any(|safe| safe == method) => {
            all_like(mark, str_methods::call(budget, text, method, args)?)
        }
        _ => str_methods::call(budget, text, method, args),
    }
}

/// The names of the characters U+00A0 to U+00FF, in order. HTML does not require a semicolon after
/// the name of a character from U+00A0 to U+00FF.
const LATIN: &str = "nbsp iexcl cent pound curren yen brvbar sect uml copy ordf laquo not shy reg macr deg plusmn sup2 \
    sup3 acute micro para middot cedil sup1 ordm raquo frac14 frac12 frac34 iquest Agrave Aacute Acirc \
    Atilde Auml Aring AElig Ccedil Egrave Eacute Ecirc Euml Igrave Iacute Icirc Iuml ETH Ntilde Ograve \
    Oacute Ocirc Otilde Ouml times Oslash Ugrave Uacute Ucirc Uuml Yacute THORN szlig agrave aacute \
    acirc atilde auml aring aelig ccedil egrave eacute ecirc euml igrave iacute icirc iuml eth ntilde \
    ograve oacute ocirc otilde ouml divide oslash ugrave uacute ucirc uuml yacute thorn yuml";

/// The names outside of [`LATIN`] that HTML accepts without a semicolon, each with its character.
const SHORT: [(&str, char); 10] = [
    ("AMP", '&'),
    ("COPY", '\u{a9}'),
    ("GT", '>'),
    ("LT", '<'),
    ("QUOT", '"'),
    ("REG", '\u{ae}'),
    ("amp", '&'),
    ("gt", '>'),
    ("lt", '<'),
    ("quot", '"'),
];

/// The character names of HTML 4 that need a semicolon. The code point of the character follows
/// each name. Source: the table of named character references in the HTML standard, section 13.5.
const LONG: &str = "apos 27 OElig 152 oelig 153 Scaron 160 scaron 161 Yuml 178 fnof 192 circ 2c6 tilde 2dc Alpha 391 \
    Beta 392 Gamma 393 Delta 394 Epsilon 395 Zeta 396 Eta 397 Theta 398 Iota 399 Kappa 39a Lambda 39b Mu \
    39c Nu 39d Xi 39e Omicron 39f Pi 3a0 Rho 3a1 Sigma 3a3 Tau 3a4 Upsilon 3a5 Phi 3a6 Chi 3a7 Psi 3a8 \
    Omega 3a9 alpha 3b1 beta 3b2 gamma 3b3 delta 3b4 epsilon 3b5 zeta 3b6 eta 3b7 theta 3b8 iota 3b9 \
    kappa 3ba lambda 3bb mu 3bc nu 3bd xi 3be omicron 3bf pi 3c0 rho 3c1 sigmaf 3c2 sigma 3c3 tau 3c4 \
    upsilon 3c5 phi 3c6 chi 3c7 psi 3c8 omega 3c9 thetasym 3d1 upsih 3d2 piv 3d6 ensp 2002 emsp 2003 \
    thinsp 2009 zwnj 200c zwj 200d lrm 200e rlm 200f ndash 2013 mdash 2014 lsquo 2018 rsquo 2019 sbquo \
    201a ldquo 201c rdquo 201d bdquo 201e dagger 2020 Dagger 2021 bull 2022 hellip 2026 permil 2030 \
    prime 2032 Prime 2033 lsaquo 2039 rsaquo 203a oline 203e frasl 2044 euro 20ac image 2111 weierp 2118 \
    real 211c trade 2122 alefsym 2135 larr 2190 uarr 2191 rarr 2192 darr 2193 harr 2194 crarr 21b5 lArr \
    21d0 uArr 21d1 rArr 21d2 dArr 21d3 hArr 21d4 forall 2200 part 2202 exist 2203 empty 2205 nabla 2207 \
    isin 2208 notin 2209 ni 220b prod 220f sum 2211 minus 2212 lowast 2217 radic 221a prop 221d infin \
    221e ang 2220 and 2227 or 2228 cap 2229 cup 222a int 222b there4 2234 sim 223c cong 2245 asymp 2248 \
    ne 2260 equiv 2261 le 2264 ge 2265 sub 2282 sup 2283 nsub 2284 sube 2286 supe 2287 oplus 2295 otimes \
    2297 perp 22a5 sdot 22c5 lceil 2308 rceil 2309 lfloor 230a rfloor 230b lang 27e8 rang 27e9 loz 25ca \
    spades 2660 clubs 2663 hearts 2665 diams 2666";

/// Jinja's filter `striptags`, which removes comments and tags, collapses white space, and decodes
/// character references such as `&lt;`.
pub fn striptags(value: &Value) -> Result<String, Error> {
    let text = repr_json::str(value)?;
    let words = without_tags(&text);
    let words: Vec<_> = words.split(is_space).filter(|word| !word.is_empty()).collect();
    unescape(&words.join(" "))
}

/// Removes tags from a text. If a tag has no end, the function keeps this tag and the text after the tag.
fn without_tags(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, tag)) = rest.split_once('<') {
        let end = match tag.strip_prefix("!--") {
            Some(comment) => comment.split_once("-->"),
            None => tag.split_once('>'),
        };
        let Some((_, behind)) = end else { break };
        out.push_str(before);
        rest = behind;
    }
    out + rest
}

fn unescape(text: &str) -> Result<String, Error> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('&') {
        out.push_str(before);
        rest = match behind.strip_prefix('#') {
            Some(number) => numbered(number, &mut out),
            None => named(behind, &mut out)?,
        };
    }
    Ok(out + rest)
}

/// Decodes a numeric character reference such as `60;`, and returns the text after the reference.
fn numbered<'a>(text: &'a str, out: &mut String) -> &'a str {
    let (base, digits) = match text.strip_prefix(['x', 'X']) {
        Some(digits) => (16, digits),
        None => (10, text),
    };
    let end = digits.find(|c: char| !c.is_digit(base)).unwrap_or(digits.len());
    let (number, behind) = digits.split_at(end);
    if number.is_empty() {
        out.push_str("&#");
        return text;
    }
    /// Browsers decode references with numbers from 128 to 159 as characters of the encoding Windows-1252.
    const WINDOWS: &str = "€\u{81}‚ƒ„…†‡ˆ‰Š‹Œ\u{8d}Ž\u{8f}\u{90}‘’“”•–—˜™š›œ\u{9d}žŸ";
    match u32::from_str_radix(number, base).unwrap_or(u32::MAX) {
        0 => out.push('\u{fffd}'),
        number @ 0x80..0xa0 => out.extend(WINDOWS.chars().nth(number as usize - 0x80)),
        0x1..=0x8 | 0xb | 0xe..=0x1f | 0x7f | 0xfdd0..=0xfdef => {}
        number if number <= 0x10ffff && number & 0xfffe == 0xfffe => {}
        number => out.push(char::from_u32(number).unwrap_or('\u{fffd}')),
    }
    behind.strip_prefix(';').unwrap_or(behind)
}

/// Decodes a named character reference such as `lt;`, and returns the text after the reference.
fn named<'a>(text: &'a str, out: &mut String) -> Result<&'a str, Error> {
    let ends = |c: char| "\t\n\u{c} <&#;".contains(c);
    let end = text.char_indices().enumerate().find(|(i, (_, c))| *i == 32 || ends(*c));
    let (name, rest) = text.split_at(end.map_or(text.len(), |(_, (at, _))| at));
    let behind = rest.strip_prefix(';');
    if let (Some(c), Some(behind)) = (short(name).or_else(|| long(name)), behind) {
        out.push(c);
        return Ok(behind);
    }
    // The text can begin with a name that needs no semicolon. The function takes the longest such
    // name, which has at most six letters.
    let starts = (2..=name.len().min(6)).rev().filter_map(|end| Some((end, short(name.get(..end)?)?)));
    if let Some((end, c)) = starts.max_by_key(|(end, _)| *end) {
        out.push(c);
        return Ok(&text[end..]);
    }
    // HTML has about 2,000 further names. Each name consists of at least two letters or digits.
    if behind.is_some() && name.len() > 1 && name.chars().all(|c| c.is_ascii_alphanumeric()) {
        let message = format!("`striptags` does not know the character reference `&{name};`");
        return Err(invalid(message));
    }
    out.push('&');
    Ok(text)
}

/// The character for a name that needs no semicolon.
fn short(name: &str) -> Option<char> {
    let latin = LATIN.split(' ').position(|latin| latin == name);
    latin.and_then(|at| char::from_u32(0xa0 + at as u32)).or_else(|| {
        let found = SHORT.iter().find(|(short, _)| *short == name)?;
        Some(found.1)
    })
}

/// The character for a name that needs a semicolon.
fn long(name: &str) -> Option<char> {
    let mut words = LONG.split(' ');
    words.find(|word| *word == name)?;
    words.next().and_then(|code| char::from_u32(u32::from_str_radix(code, 16).ok()?))
}
