//! Compiles modules, and calls them through IREE.
//!
//! The crate has two halves. The compiled module, a `.vmfb` file, connects the two halves.
//!
//! - [`compile`] runs `iree-compile` as a child process, with a time limit and a content [`ModuleCache`].
//! - A [`Runtime`] loads the module as a [`VmModule`], with memory-mapped [`Parameters`]. A [`VmFunction`] of
//!   the module takes and returns [`Buffer`]s.
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
//! This crate does not know what a module computes. The crate only handles bytes and types.
//!
//! **State is moved in and moved out.** A program may update an argument in place, so a call consumes its buffers,
//! and you cannot clone a [`Buffer`]. The results of a call belong to the caller alone.
//!
//! **A compiled module is native code.** Load only modules that you trust, as you would with executable files.
//!
//! Building this crate also builds IREE's runtime, which takes a minute or two. If you build many packages,
//! set `TRACEWRIGHT_NATIVE` to the folder that an earlier build filled:
//! `target/…/build/tracewright-runtime-…/out/native`. The build then links the libraries in this folder, and
//! rejects a folder that was built from other sources or lacks a driver.

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
pub use compile::{Compiled, ModuleText, compile};
pub use compiler::{CompileError, CompileOptions, Compiler, WHEEL};
pub use cpu::{host_cpu_features, missing_cpu_features};
pub use device::{Device, Runtime, Transfers};
pub use driver::{DeviceInfo, device, devices};
pub use error::{RuntimeError, Status, StatusCode};
pub use files::ModuleCache;
pub use parameters::{PARAMETER_ALIGNMENT, ParameterData, Parameters, SharedBytes};
pub use profile::Executed;
pub use program::{VmFunction, VmModule, VmValue};
