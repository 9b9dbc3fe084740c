//! Evidence that spans crates.

pub mod arbitrary;
pub mod calls;
pub mod golden;
pub mod level;
pub mod rewrite;
