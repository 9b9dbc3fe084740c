use std::fmt;

use ops::{ParseError, Reader};

/// At most 32 ASCII letters, digits and underscores, not ending with a digit, so that a name followed by a
/// layer number never equals another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateName {
    bytes: [u8; Self::LONGEST],
}

impl StateName {
    const LONGEST: usize = 32;

    /// Checks a name. Returns `None` if `name` is not a valid name for a state tensor.
    ///
    /// ```
    /// use tracewright_trace::StateName;
    ///
    /// assert_eq!(StateName::new("latent").map(|name| name.to_string()), Some("latent".to_owned()));
    /// assert_eq!(StateName::new("latent0"), None);
    /// ```
    pub fn new(name: &str) -> Option<Self> {
        let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !is_word || !begins || name.ends_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        let mut bytes = [0; Self::LONGEST];
        bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        Some(Self { bytes })
    }

    pub fn as_str(&self) -> &str {
        let end = self.bytes.iter().position(|byte| *byte == 0).unwrap_or(Self::LONGEST);
        std::str::from_utf8(&self.bytes[..end]).unwrap_or_default()
    }

    pub(crate) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let mut ahead = reader.clone();
        match ahead.word().ok().and_then(Self::new) {
            Some(name) => {
                *reader = ahead;
                Ok(name)
            }
            None => reader.error("a name of state: at most 32 letters, digits and `_`, the last no digit"),
        }
    }
}

impl fmt::Display for StateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for StateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}
