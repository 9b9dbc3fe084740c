//! The model! macro.
