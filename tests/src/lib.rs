//! Evidence that spans crates.

pub mod arbitrary;
pub mod built;
pub mod calls;
pub mod embedding;
pub mod emulator;
pub mod golden;
pub mod level;
pub mod parity;
pub mod precision;
pub mod rewrite;
pub mod tiles;
