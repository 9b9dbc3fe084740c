//! Declare a language model in Rust, lower it to StableHLO, run it through IREE.
//!
//! This crate is the facade: a user crate depends on it alone. Each stage is a crate of its own, re-exported here,
//! and the stages in order are
//!
//! 1. [`dsl`]: a network declared with [`model!`] is recorded as a [`trace::Trace`]; no weight is read;
//! 2. [`lower`]: composite ops become primitives, primitives become StableHLO text ([`Lowered`] does both);
//! 3. [`bake`]: a checkpoint becomes the archive that the trace asks for;
//! 4. `runtime` and `generate` (feature `iree`): the text is compiled, loaded and called. `build::build_program` takes any
//!    trace and its checkpoint there in one call.
//!
//! For a known model `Model` (feature `iree`) does all of that: open it, and chat, continue text, score or embed.
#![warn(missing_docs)]

pub use bake;
pub use dsl;
pub use errors;
pub use files;
#[cfg(feature = "iree")]
pub use generate;
pub use irpa;
pub use lower;
pub use models;
pub use ops;
#[cfg(feature = "iree")]
pub use runtime;
pub use simplify;
pub use targets;
pub use trace;

pub use dsl::{Axis, Bf16, CausalLm, EntryPoint, F16, F32, Float, I32, Tensor, TraceArg, model};

#[cfg(feature = "iree")]
pub mod build;
#[cfg(feature = "iree")]
pub mod embed;
pub mod export;
#[cfg(feature = "iree")]
pub mod model;
pub mod output_guard;
mod plan;
#[cfg(feature = "iree")]
mod program;
pub mod quant_map;
pub mod tuning;

pub use bake::random;
#[cfg(feature = "iree")]
pub use generate::{Follow, GenerateOptions, Sampling};
#[cfg(feature = "iree")]
pub use model::{Model, ModelError, OpenOptions, assistant, system, user};
pub use ops::{Array, ArrayError, Number};
pub use pipeline::{DevicePartition, Expanded, Footprint, Lowered, Memory, StagedTrace, primitives};
pub use pipeline::{footprint, partition};
pub use plan::{Plan, PlanError};
#[cfg(feature = "iree")]
pub use program::{CallError, Program};

/// The Rust in the README is a test.
#[cfg(all(doctest, feature = "iree"))]
#[doc = include_str!("../README.md")]
struct Readme;
