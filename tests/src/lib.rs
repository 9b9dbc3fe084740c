//! Evidence that spans crates.

pub mod arbitrary;
pub mod built;
pub mod calls;
pub mod case;
pub mod embedding;
pub mod emulator;
pub mod evaluate;
pub mod faults;
pub mod golden;
pub mod in_iree;
pub mod leeway;
pub mod level;
pub mod long;
pub mod parity;
pub mod portable;
pub mod precision;
pub mod rewrite;
pub mod tiles;
