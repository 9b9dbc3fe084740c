//! Declares language models in Rust, lowers them to StableHLO, and runs them with IREE or XLA.
//!
//! The crate `tracewright` is the facade of the project, and the only crate that you need to depend
//! on. Each compilation stage is a separate crate, which this crate re-exports. The compilation
//! stages are, in order:
//!
//! 1. [`dsl`]: records a network, declared with [`model!`], as a [`trace::Trace`]. Recording reads no weights.
//! 2. [`lower`]: expands composite operations to primitive operations, and writes the primitive
//!    operations as StableHLO text. The type [`Lowered`] expands the operations and writes the
//!    text.
//! 3. [`bake`]: turns a checkpoint into the archive of the trace's parameters.
//! 4. `runtime` and `generate` (feature `iree`): compile, load and call the module. `build::build_program` turns
//!    any trace and its checkpoint into a loaded program in one call.
//!
//! For a known architecture, `Model` (feature `iree`) runs all compilation stages. With an open
//! model, you can chat, continue a text, or compute scores or embeddings.
#![warn(missing_docs)]

pub use bake;
pub use dsl;
pub use errors;
pub use files;
#[cfg(feature = "iree")]
pub use generate;
#[cfg(feature = "iree")]
pub use hub;
pub use irpa;
pub use lower;
pub use models;
pub use ops;
#[cfg(feature = "iree")]
pub use pjrt;
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
#[cfg(feature = "iree")]
pub mod xla;

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

/// Compiles the Rust code blocks of the README as documentation tests.
#[cfg(all(doctest, feature = "iree"))]
#[doc = include_str!("../README.md")]
struct Readme;
