//! Creates the ids and the timestamps of answers.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::sampling::random;

/// Returns a unique id: a prefix such as `chatcmpl-`, and 24 digits.
pub fn id(prefix: &str) -> String {
    let digits = format!("{:016x}{:016x}", random(), random());
    format!("{prefix}{}", &digits[..24])
}

/// Returns the number of seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
