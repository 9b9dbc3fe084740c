//! The processor that tests compile for: this machine's, or one that it contains, so that what holds on one kind of
//! processor only shows on every machine.

use tracewright::targets::Target;

/// Names the processor in the environment of the tests, as `x86-64-v2`.
pub const VARIABLE: &str = "TRACEWRIGHT_TEST_TARGET";

/// The target of every test that does not set its own.
///
/// # Panics
/// If the variable names no target.
pub fn target() -> Target {
    match std::env::var(VARIABLE) {
        Ok(name) => name.parse().unwrap_or_else(|error| panic!("{VARIABLE}: {error}")),
        Err(_) => Target::host(),
    }
}
