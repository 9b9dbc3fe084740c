//! `tracewright export` writes a folder with a compiled model that runs without Python and without a
//! compiler.

#[cfg(feature = "iree")]
mod iree;
mod xla;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use console::NumericsArguments;
use tracewright::targets::Target;

use crate::Invocation;
use crate::arguments::{BuildArguments, Engine, MeshArguments, batch};
use crate::error::Error;

#[derive(Args)]
pub struct Arguments {
    /// Hugging Face model directory, or a GGUF file
    pub model: PathBuf,
    /// Directory to write
    #[arg(short, long, value_name = "DIR")]
    pub out: PathBuf,
    /// Target to compile for: `host` for this machine, a processor name of LLVM,
    /// PLATFORM:PROCESSOR[:FEATURES] such as `aarch64-linux-gnu:generic:+neon`, or
    /// DEVICE[:PROCESSOR[:FEATURES]] such as `vulkan`, `cuda:sm_86`, `hip:gfx942` or `metal`
    #[arg(long, default_value = "host")]
    pub target: Target,
    #[command(flatten)]
    pub numerics: NumericsArguments,
    /// Engine that runs the export: IREE, or XLA on one or more devices with the Python package `tracewright_xla`
    #[arg(long, value_enum, default_value = "iree")]
    pub engine: Engine,
    /// Print one JSON object on stdout instead of a summary on stderr
    #[arg(long)]
    pub json: bool,
    /// Print the equivalent commands of IREE's own tools on stderr
    #[arg(long)]
    pub print_commands: bool,
    #[command(flatten)]
    pub xla: XlaArguments,
    #[command(flatten)]
    pub build: BuildArguments,
}

#[derive(Args, Clone)]
pub struct XlaArguments {
    #[command(flatten)]
    pub mesh: MeshArguments,
    /// For XLA: number of sequences that a call computes in parallel [default: 1]
    #[arg(long, value_name = "N", value_parser = batch)]
    pub batch: Option<NonZeroUsize>,
}

impl Arguments {
    pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
        match self.engine {
            Engine::Xla => xla::run(self, invocation),
            Engine::Iree => with_iree!("export", iree::run(self, invocation)),
        }
    }
}
