//! Evidence that spans crates.

pub mod arbitrary;
pub mod golden;
pub mod rewrite;
