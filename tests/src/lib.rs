//! Evidence that spans crates.

pub mod golden;
pub mod rewrite;
