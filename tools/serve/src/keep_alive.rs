//! How long a model without requests stays loaded, in the notation of Ollama.

use std::time::Duration;

use jiff::SignedDuration;
use serde_json::Value;

use crate::body::shown;
use crate::failure::Failure;

/// The time without requests after which the server unloads a model: seconds or a duration such as `5m`. A negative
/// time keeps the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive(pub Option<Duration>);

impl KeepAlive {
    /// Reads the field `keep_alive` of a request: a number of seconds, or a text.
    pub fn of_field(given: Option<&Value>) -> Result<Option<Self>, Failure> {
        let Some(given) = given.filter(|given| !given.is_null()) else { return Ok(None) };
        let text = match given {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        Self::read(&text).map(Some).ok_or_else(|| {
            Failure::field(
                "keep_alive",
                shown(given),
                "seconds or a duration, such as `300`, `\"5m\"` or `-1`",
            )
        })
    }

    /// Returns `None` for a text that is neither a number of seconds nor a duration.
    fn read(text: &str) -> Option<Self> {
        let time = match text.parse() {
            Ok(seconds) => SignedDuration::try_from_secs_f64(seconds).ok()?,
            Err(_) => text.parse().ok()?,
        };
        Some(Self(Duration::try_from(time).ok()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_durations_and_no_end_are_read() {
        let read = |text: &str| KeepAlive::read(text).map(|KeepAlive(time)| time);
        let seconds = |seconds| Some(Some(Duration::from_secs(seconds)));
        assert_eq!(read("300"), seconds(300));
        assert_eq!(read("5m"), seconds(300));
        assert_eq!(read("1h30m"), seconds(5400));
        assert_eq!(read("0.0"), seconds(0));
        assert_eq!(read("-1"), Some(None));
        assert_eq!(read("-1m"), Some(None));
        for bad in ["", "m", "5 parsecs", "NaN", "1e99"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
