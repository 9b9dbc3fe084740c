//! How reports show what was measured.

use std::time::Duration;

/// A time as reports show it.
pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
