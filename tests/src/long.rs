//! Tests that have a long form.

/// Asks for it in the environment of the tests.
const VARIABLE: &str = "TRACEWRIGHT_TEST_LONG";

/// Whether tests take their long form.
pub fn is_wanted() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// All of these in the long form, else the first few.
pub fn first<T, const ALL: usize>(all: [T; ALL], few: usize) -> impl Iterator<Item = T> {
    all.into_iter().take(if is_wanted() { ALL } else { few })
}
