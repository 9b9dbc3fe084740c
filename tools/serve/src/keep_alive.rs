//! How long a model without requests stays loaded, in the notation of Ollama.

use std::str::FromStr;
use std::time::Duration;

use jiff::SignedDuration;
use serde_json::Value;

use crate::body::shown;
use crate::failure::Failure;

/// The time without requests after which the server unloads a model: seconds or a duration such as `5m`. A negative
/// time keeps the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive(pub Option<Duration>);

/// The text is no time that a model can stay loaded.
#[derive(Debug, thiserror::Error)]
#[error("expected seconds or a duration, such as `300`, `5m` or `1h`, or `-1` to keep the model")]
pub struct NoDuration;

impl FromStr for KeepAlive {
    type Err = NoDuration;

    fn from_str(text: &str) -> Result<Self, NoDuration> {
        let time = match text.parse() {
            Ok(seconds) => SignedDuration::try_from_secs_f64(seconds).map_err(|_| NoDuration)?,
            Err(_) => text.parse().map_err(|_| NoDuration)?,
        };
        Ok(Self(Duration::try_from(time).ok()))
    }
}

impl KeepAlive {
    /// Reads the field `keep_alive` of a request: a number of seconds, or a text.
    pub fn of_field(given: Option<&Value>) -> Result<Option<Self>, Failure> {
        let Some(given) = given.filter(|given| !given.is_null()) else { return Ok(None) };
        let text = match given {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let refuse = |_| {
            Failure::field(
                "keep_alive",
                shown(given),
                "seconds or a duration, such as `300`, `\"5m\"` or `-1`",
            )
        };
        text.parse().map(Some).map_err(refuse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_durations_and_no_end_are_read() {
        let read = |text: &str| text.parse::<KeepAlive>().ok().map(|KeepAlive(time)| time);
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
