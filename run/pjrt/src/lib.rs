//! Compiles and calls StableHLO modules with a PJRT plugin. A plugin is a shared library that
//! contains XLA for one kind of device.
//!
//! A [`Plugin`] starts a [`Client`], which owns the devices. The client compiles the text of a module into an
//! [`Executable`], and copies tensors to a device as [`PjrtBuffer`]s. This crate does not need Python.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use ops::{ElementType, TensorType};
//! use tracewright_pjrt::{PjrtArgument, PjrtError, Placement, Plugin, XlaOptions};
//!
//! let client = Plugin::load(Path::new("libpjrt_cpu.so"))?.client()?;
//! let module = "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
//!   %0 = stablehlo.add %a, %a : tensor<2xf32>
//!   return %0 : tensor<2xf32>
//! }";
//! let double = client.compile(module, 0..1, &XlaOptions::default())?;
//! let ones = [1f32; 2].map(f32::to_le_bytes).concat();
//! let ones = client.upload(&Placement::on(0), &TensorType::new(ElementType::F32, [2]), &ones)?;
//! let results = double.execute(vec![PjrtArgument::Kept(&ones)])?;
//! assert_eq!(results[0].read()?, [2f32; 2].map(f32::to_le_bytes).concat());
//! # Ok::<(), PjrtError>(())
//! ```
//!
//! A program can be partitioned over several devices. The text of a partitioned module contains
//! shardings. A [`Placement`] describes the part of a tensor that each device stores. If a program
//! runs on one device, each tensor has a single part.
//!
//! You can use a client, and all objects of the client, only on the thread that created the client.
//! The plugin itself starts threads.

mod client;
mod error;
mod ffi;
mod library_file;
mod options;
mod packages;
mod placement;
#[cfg(unix)]
mod stderr;

pub use client::{Client, Executable, PjrtArgument, PjrtBuffer, PjrtDevice, Plugin};
pub use error::{PjrtError, PjrtStatus};
pub use ffi::OLDEST_MINOR;
pub use options::XlaOptions;
pub use packages::{PACKAGES, PluginPackage, find_plugin, packaged};
pub use placement::Placement;
