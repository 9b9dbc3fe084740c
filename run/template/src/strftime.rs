//! Python's `strftime`, which templates call to print the date.

use jiff::Zoned;
use minijinja::Error;

use crate::invalid;

/// Python's `datetime.now().strftime(format)`, in the locale `C`. The formatted time has no time zone.
pub fn strftime(now: Zoned, format: &str) -> Result<String, Error> {
    /// The directives that jiff formats in the same way as C's `strftime`.
    const SAME: &str = "aAbBCdDeFgGhHIjklmMnpPRStTuUVwWyY%";
    let cannot = |why: String| invalid(format!("`strftime_now` cannot format `{format}`: {why}"));
    let mut text = String::new();
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        let settings = after.find(|c| !"-_0^#".contains(c)).unwrap_or(after.len());
        let (settings, conversion) = after.split_at(settings);
        let mut conversion = conversion.chars();
        text.push_str(before);
        match conversion.next() {
            Some('c') => text.push_str("%a %b %e %H:%M:%S %Y"),
            Some('f') => text.push_str("%6f"),
            Some('r') => text.push_str("%I:%M:%S %p"),
            Some('x') => text.push_str("%m/%d/%y"),
            Some('X') => text.push_str("%H:%M:%S"),
            Some('z' | 'Z') => {}
            Some(same) if SAME.contains(same) => text.extend(["%", settings, same.encode_utf8(&mut [0; 4])]),
            Some(other) => return Err(cannot(format!("`%{settings}{other}` is not known"))),
            None => return Err(cannot("it ends in a conversion".to_owned())),
        }
        rest = conversion.as_str();
    }
    text.push_str(rest);
    jiff::fmt::strtime::format(&text, &now).map_err(|source| cannot(source.to_string()))
}
