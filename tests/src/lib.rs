//! Evidence that spans crates.
