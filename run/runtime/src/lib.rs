//! Compiles MLIR modules, and calls the compiled modules through IREE.
//!
//! One part of the crate compiles modules to `.vmfb` files, and another part of the crate loads and
//! runs these files.
//!
//! - [`compile`] runs `iree-compile` as a child process with a time limit, and stores compiled
//!   modules in a [`ModuleCache`].
//! - A [`Runtime`] loads a compiled module as a [`VmModule`]. The module reads memory-mapped
//!   [`Parameters`]. Each [`VmFunction`] of the module takes and returns [`Buffer`]s.
//!
//! ```no_run
//! use tracewright_runtime::*;
//! # use std::path::PathBuf;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let text = "func.func @double(%a: tensor<4xf32>) -> tensor<4xf32> {
//!   %0 = stablehlo.add %a, %a : tensor<4xf32>
//!   return %0 : tensor<4xf32>
//! }";
//! let compiler = Compiler::find(None, &[PathBuf::from("venv/bin")])?;
//! let module = ModuleText { text, text_without_locs: text };
//! let compiled = compile(&compiler, &module, &CompileOptions::default(), &ModuleCache::new("cache"))?;
//!
//! let runtime = Runtime::new(Device::LocalTask { workers: 0 })?;
//! let double = VmModule::load(&runtime, &compiled.vmfb, &[])?.function("double")?;
//! let ones = [1f32; 4].map(f32::to_le_bytes).concat();
//! let ones = Buffer::from_bytes(&runtime, &ops::TensorType::new(ops::ElementType::F32, [4]), &ones)?;
//! let results: Vec<VmValue> = double.call(vec![ones.into()])?;
//! # Ok(()) }
//! ```
//!
//! This crate handles only bytes and types. The crate contains no knowledge about language models.
//!
//! **A call consumes its arguments.** A program may update an argument in place. Therefore,
//! [`Buffer`] does not implement `Clone`, and a call takes ownership of its arguments. No other
//! buffer shares memory with the results of a call.
//!
//! **A compiled module is native code.** Load only modules that you trust, as you would with executable files.
//!
//! Building this crate also builds IREE's runtime, which takes a minute or two. To reuse the
//! libraries of an earlier build, set `TRACEWRIGHT_NATIVE` to the earlier build's folder
//! `target/…/build/tracewright-runtime-…/out/native`. The build then links the libraries of the
//! earlier build. If the libraries in the folder were built from other sources or without a
//! required driver, the build fails.

mod buffer;
mod child;
mod compile;
mod compiler;
mod cpu;
mod device;
mod driver;
mod error;
mod ffi;
mod parameters;
mod profile;
mod program;

pub use buffer::Buffer;
pub use compile::{Compiled, ModuleText, compile, compiled_before};
pub use compiler::{CompileError, CompileOptions, Compiler, WHEEL};
pub use cpu::{host_cpu_features, missing_cpu_features};
pub use device::{Device, Runtime, Transfers};
pub use driver::{DeviceInfo, device, devices};
pub use error::{RuntimeError, Status, StatusCode};
pub use ffi::give_back_memory;
pub use files::ModuleCache;
pub use parameters::{PARAMETER_ALIGNMENT, ParameterData, Parameters, SharedBytes};
pub use profile::Executed;
pub use program::{VmFunction, VmModule, VmValue};
