//! Builds, loads and calls programs. A program is a compiled module together with the archive of
//! the module's weights.
//!
//! [`build`] turns a recorded trace and a checkpoint into a [`Program`] in one call. Entry points of a
//! [`Program`] take tensors in host memory. [`embed`] calls the entry point of an embedding model.
//! [`commands`] formats command lines with which IREE's own tools compile and call a program.
#![warn(missing_docs)]

pub mod build;
pub mod commands;
pub mod embed;
mod program;

pub use program::{CallError, Program};
