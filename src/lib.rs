//! Declares language models in Rust, lowers them to StableHLO, and runs them with IREE or XLA.
//!
//! The crate `tracewright` is the facade of the project, and the only crate that you need to depend on. Each
//! compilation stage is a separate crate, which this crate re-exports. The compilation stages are, in order:
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

#[cfg(feature = "iree")]
pub use audio;
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
pub use pixels;
#[cfg(feature = "iree")]
pub use pjrt;
#[cfg(feature = "iree")]
pub use runtime;
pub use simplify;
pub use targets;
pub use trace;

pub use dsl::{Axis, Bf16, CausalLm, EntryPoint, F16, F32, Float, I32, Tensor, TraceArg, model};

pub mod export;
#[cfg(feature = "iree")]
pub mod model;
mod named_adapter;
pub mod output_guard;
pub mod tuning;
#[cfg(feature = "iree")]
pub mod xla;

pub use bake::random;
#[cfg(feature = "iree")]
pub use generate::{Follow, GenerateOptions, Sampling};
#[cfg(feature = "iree")]
pub use model::{Model, ModelError, OpenOptions, assistant, system, user};
pub use named_adapter::NamedAdapter;
pub use ops::{Array, ArrayError, Number};
pub use program::{
    AdapterError, AdapterRoom, NumericOptions, Plan, PlanError, footprint, numeric, partition, quant_map,
};
#[cfg(feature = "iree")]
pub use program::{CallError, LoadedNetwork, Program};
pub use program::{DevicePartition, Expanded, Footprint, Lowered, Memory, StagedTrace, primitives};

/// ```no_run
/// use std::path::Path;
///
/// use tracewright::irpa::Checkpoint;
/// use tracewright::build::{ProgramOptions, build_program};
/// use tracewright::models::ModelConfig;
/// use tracewright::runtime::{Compiler, Device};
/// use tracewright::Plan;
///
/// let folder = Path::new("demo");
/// let plan = Plan::new(ModelConfig::read(folder, &[])?, None, None, None)?;
/// let compiler = Compiler::new("iree-compile"); // the one on PATH
/// let options = ProgramOptions { device: Device::LocalSync, ..ProgramOptions::new(&compiler, Path::new("cache")) };
/// let built = build_program(&plan.trace()?, &plan.named(Checkpoint::open(folder)?), options)?;
/// println!("context {}", built.program.network()?.context());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "iree")]
pub use program::build;

/// ```no_run
/// # use std::error::Error;
/// # use std::path::Path;
/// use tracewright::Plan;
/// use tracewright::embed::Embedder;
/// use tracewright::generate::Tokenizer;
/// use tracewright::build::{ProgramOptions, build_program};
/// use tracewright::models::{self, check_embeds, fit};
/// use tracewright::runtime::Compiler;
///
/// # fn main() -> Result<(), Box<dyn Error>> {
/// let folder = Path::new("embeddinggemma-300m");
/// let fitted = fit::open(models::read, folder, &[])?;
/// let sentence = check_embeds(&fitted.network.kind, folder)?;
/// let text = format!("{}Why is the sky blue?", sentence.prompt(Some("query"))?);
/// let tokenizer = Tokenizer::load(folder)?.ok_or("there is no tokenizer.json")?;
/// let (tokens, _) = tokenizer.encode_within(&text, sentence.max_tokens)?;
///
/// let plan = Plan::new(fitted.network, None, Some(128), None)?;
/// let compiler = Compiler::new("iree-compile"); // the one on PATH
/// let options = ProgramOptions::new(&compiler, Path::new("cache"));
/// let options = ProgramOptions { ignorable: plan.model.ignorable.clone(), ..options };
/// let loaded = build_program(&plan.trace()?, &fitted.checkpoint, options)?;
/// let vectors = Embedder::new(&loaded.program, plan.model.vocabulary())?.embed(&[tokens])?;
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "iree")]
pub use program::embed;

/// Compiles the Rust code blocks of the README as documentation tests.
#[cfg(all(doctest, feature = "iree"))]
#[doc = include_str!("../README.md")]
struct Readme;
